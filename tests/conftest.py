"""Fixtures that every numeric test runs under: each engine and instruction set of this machine, each dtype."""

import pytest
from reference import DTYPES

import fge

PATHS = [(engine, isa) for engine in fge.engines() for isa in fge.isas()]


def pytest_configure(config):
    config.addinivalue_line("markers", "exhaustive: walks through all 2^32 patterns; minutes to hours")
    config.addinivalue_line("markers", "large: needs many gigabytes of memory")


@pytest.fixture(params=PATHS, ids="-".join)
def path(request):
    """(engine, instruction set), forced for the whole process while the test runs."""
    engine, isa = request.param
    with fge.engine(engine), fge.isa(isa):
        yield request.param


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request):
    return request.param
