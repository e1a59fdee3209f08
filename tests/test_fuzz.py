"""Random problems, drawn anew in every run; see fuzz.py, which goes on for as long as one likes."""

from fuzz import check, problems
from hypothesis import HealthCheck, given, settings


@settings(max_examples=3000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(problems())
def test_random_problems(problem):
    check(problem)
