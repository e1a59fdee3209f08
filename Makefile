# Each target makes the virtual environment that it needs; PYTHON chooses the interpreter.
PYTHON ?= python3
TORCH ?= torch==2.13.0
PADDLE ?= paddlepaddle==3.3.1

.PHONY: bench test test-exhaustive fuzz stress clean

bench: .venv-bench/ready
	env -u OPENBLAS_CORETYPE .venv-bench/bin/python -m bench

test: .venv-test/ready
	.venv-test/bin/python -m pytest -n 2 tests

test-exhaustive: .venv-test/ready
	.venv-test/bin/python -m pytest -m "exhaustive or large" tests

# make fuzz SECONDS=600 SEED=1
SECONDS ?= 60
SEED ?= 0
fuzz stress: .venv-test/ready
	.venv-test/bin/python tests/$@.py --seconds $(SECONDS) --seed $(SEED)

# Built in place from the tree as it is each time (the tree's fge is what python -m finds first); tools are installed once.
.venv-%/tools:
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --upgrade pip
	touch $@
.venv-bench/ready: .venv-bench/tools FORCE
	.venv-bench/bin/python -m pip install --quiet --editable '.[bench]'
	touch $@
.venv-test/ready: .venv-test/tools FORCE
	.venv-test/bin/python -m pip install --quiet '$(TORCH)' '$(PADDLE)'
	.venv-test/bin/python -m pip install --quiet --editable '.[test]'
	touch $@
.PHONY: FORCE
FORCE:
.PRECIOUS: .venv-%/tools

clean:
	rm -rf .venv-bench .venv-test build fge/*.so fge/_kernels.c fge/_blas.c fge/_paddle.c fge/_torch.c *.egg-info
