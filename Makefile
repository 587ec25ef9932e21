# make demo   train SVRG and SGD on real images: a table and a picture
# make test   run the tests of every feature
# make test-all   run those that `make test` leaves out, too
# make test-kernels   run tests of pages and of trainings with the kernels of four other processors
# make test-last-bits   run tests of trainings whose data have other last bits
# make test-pythons   run those of `make test` that a version may break on each other Python that is found
# make bench   run all benchmarks: their tables and pictures go to docs/benchmarks, tables to the pages too
# make docs   build the documentation, into docs/_build/html
# make figures   draw the pictures of the documentation, into docs/images
# make lint   run the linter
# make clean   remove what the others made
#
# Each makes a virtual environment below .venv first. To use another Python than
# python3: make test PYTHON=python3.10. To use another NumPy than the newest that
# pip takes: make test NUMPY=1.23.5. CONTRIBUTING.md says more.

PYTHON ?= python3
SUPPORTED := 3.8 3.9 3.10 3.11 3.12 3.13 3.14 3.15
TOO_OLD := 2.% 3.0 3.1 3.2 3.3 3.4 3.5 3.6 3.7
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
PYTHONS := $(filter-out $(VERSION),$(SUPPORTED))
VENV := .venv/$(VERSION)$(addprefix -numpy-,$(NUMPY))
RUN := MXNET_SUBGRAPH_VERBOSE=0 $(VENV)/bin/python
INSTALL := $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

WANTED := $(addprefix numpy==,$(NUMPY))
# mxnet's metadata demand a NumPy below 2, which pip would compile for half an hour from 3.13 on.
# Before, a NumPy 2 that somebody asks for is put over the one that they take.
ifeq ($(filter 3.8 3.9 3.10 3.11 3.12,$(VERSION)),)
MXNET_NEEDS := 'requests<3' 'graphviz<0.9'
INSTALL_MXNET := $(INSTALL) --no-deps 'mxnet>=1.8,<2'
else
LATER := $(filter numpy==2.%,$(WANTED))
endif
PYTEST := OMP_NUM_THREADS=1 $(RUN) -m pytest --quiet -n 3 --dist loadgroup
# See "Threads" in docs/performance.md: they are for networks, and each table names its own.
THREADS := MXNET_ENGINE_TYPE=NaiveEngine OMP_NUM_THREADS=$(shell getconf _NPROCESSORS_ONLN)
OF_NUMBERS := $(addprefix tests/,documentation core module gluon rate proximal data promises)
QUICK := not slow and not exhaustive and not soak
OF_VERSIONS := $(addprefix tests/,mxnet_repair checkpoint/test_resumed_runs.py core/test_correction.py \
	promises/test_whole_trainings.py)
FIND := 'import sys; print(sys.executable)' 2>/dev/null

.PHONY: help demo test test-kernels test-last-bits test-slow test-all test-exhaustive horovod gluonts soak test-pythons coverage mutation bench docs \
	figures lint clean supported-python

help:
	@sed -n '/^# make /{s/^# //;p;};/^#$$/q' Makefile

demo: $(VENV)/examples.installed
	$(RUN) examples/svrg_vs_sgd.py

test: $(VENV)/test.installed
	$(PYTEST) -m '$(QUICK)' $(TESTS)

# Those of OpenBLAS and of oneDNN. The last bits of their results differ.
KERNELS := Haswell:AVX2 Sandybridge:AVX Nehalem:SSE41 Zen:AVX2
test-kernels: $(VENV)/test.installed
	for kernels in $(KERNELS); do \
		echo "Kernels $$kernels:"; isa=$${kernels#*:}; \
		OPENBLAS_CORETYPE=$${kernels%:*} MKLDNN_MAX_CPU_ISA=$$isa DNNL_MAX_CPU_ISA=$$isa \
			$(PYTEST) -m '$(QUICK)' $(or $(TESTS),$(OF_NUMBERS)) || exit 1; done

# Data differ in their last bits, as sums do on another processor.
BITS := 1 2 3 4 5
test-last-bits: $(VENV)/test.installed
	for seed in $(BITS); do $(PYTEST) -m '$(QUICK)' --last-bits $$seed \
		$(or $(TESTS),tests/rate tests/promises tests/proximal) || exit 1; done

test-slow: $(VENV)/test.installed
	$(PYTEST) -m 'slow and not exhaustive and not soak' $(TESTS)

test-all: $(VENV)/test.installed
	$(PYTEST)

test-exhaustive: $(VENV)/test.installed
	$(PYTEST) -m exhaustive

# One of them with a NumPy with which MXNet imports by itself. The shims of
# pyenv run only what is chosen, or named.
test-pythons:
	for version in $(PYTHONS); do \
		python=$$(python$$version -c $(FIND) || PYENV_VERSION=$$version python$$version -c $(FIND)) || \
			{ echo "There is no python$$version here."; continue; }; \
		echo "Python $$version:"; numpy=; [ $$version != 3.10 ] || numpy=1.23.5; \
		$(MAKE) --no-print-directory test TESTS='$(OF_VERSIONS)' PYTHON=$$python NUMPY=$$numpy || \
			exit 1; done

horovod: $(VENV)/horovod.built

gluonts: $(VENV)/gluonts.installed

soak: $(VENV)/test.installed
	HYPOTHESIS_PROFILE=soak $(RUN) -m pytest --timeout 0 tests/core/test_properties.py
	$(RUN) -m pytest --timeout 0 -m soak tests/promises/test_soak.py

coverage: $(VENV)/coverage.installed
	$(PYTEST) --cov --cov-report=term

mutation: $(VENV)/mutation.installed
	rm -rf mutants
	MXNET_ENGINE_TYPE=NaiveEngine OMP_NUM_THREADS=1 MXNET_SUBGRAPH_VERBOSE=0 \
		$(VENV)/bin/mutmut run --max-children 2
	$(VENV)/bin/mutmut results

bench: $(VENV)/benchmarks.installed
	for name in epoch_cost time_to_suboptimality tolerance beside_pytorch deep_network memory sparse_rows; do \
		$(RUN) examples/benchmarks/$$name.py || exit 1; done
	OPENBLAS_CORETYPE=Haswell MKLDNN_MAX_CPU_ISA=AVX2 DNNL_MAX_CPU_ISA=AVX2 OMP_NUM_THREADS=1 \
		$(RUN) examples/benchmarks/time_to_suboptimality.py --methods newton_cg 'scikit-learn lbfgs'
	$(RUN) examples/benchmarks/batch_size.py
	for name in hard_problems distributed; do \
		OMP_NUM_THREADS=1 $(RUN) examples/benchmarks/$$name.py || exit 1; done
	$(THREADS) $(RUN) examples/benchmarks/gluon_cost.py
	$(RUN) examples/benchmarks/copy_tables.py

docs: $(VENV)/docs.installed
	$(RUN) -m sphinx -W --keep-going -q -c docs . docs/_build/html
	@echo 'The documentation is in docs/_build/html/index.html.'

figures: $(VENV)/examples.installed
	for name in method variance update_freq newton_cg raw_columns constant_rate batch_size lasso_path proximal sampled_full_gradients tutorial; do \
		$(RUN) docs/figures/$$name.py || exit 1; done

lint: $(VENV)/test.installed
	$(RUN) -m ruff check
	$(RUN) -m mypy

clean:
	rm -rf .venv .nox build dist docs/_build mutants .coverage \
		svrg_optimization.egg-info svrg_vs_sgd.png made.svm checkpoints \
		examples/distributed/run .pytest_cache .ruff_cache .hypothesis

# It needs g++. With an MPI mpirun can start its jobs too.
$(VENV)/horovod.built: | $(VENV)/test.installed $(VENV)/horovod.installed
	@echo 'Building Horovod into $(VENV) ...'
	PATH="$(abspath $(VENV))/bin:$$PATH"; command -v mpicxx > /dev/null || export HOROVOD_WITHOUT_MPI=1; \
	HOROVOD_WITH_MXNET=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 \
		$(INSTALL) --no-cache-dir --no-build-isolation --no-deps --no-binary horovod horovod==0.28.1
	@touch $@

$(VENV)/%.installed: setup.py pyproject.toml constraints.txt | supported-python
	@lacks=; $(PYTHON) -c 'import ensurepip' 2>/dev/null || lacks=' python$(VERSION)-venv'; \
	[ "$$(uname -sm)" != 'Linux x86_64' ] || for each in libgomp1:libgomp.so.1 libquadmath0:libquadmath.so.0; do \
		$(PYTHON) -c "import ctypes; ctypes.CDLL('$${each#*:}')" 2>/dev/null || lacks="$$lacks $${each%:*}"; \
	done; [ -z "$$lacks" ] || { echo "This system lacks$$lacks. On Debian and Ubuntu install what is missing with" >&2; \
		echo "    apt-get install --yes$$lacks" >&2; false; }
	@echo 'Installing into $(VENV) ...'
	$(if $(filter $(VERSION),$(SUPPORTED)),,@echo 'Python $(VERSION) is newer than those that were tried, 3.8 to $(lastword $(SUPPORTED)): it may work.')
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable '.[$*]' $(MXNET_NEEDS) $(filter-out $(LATER),$(WANTED))
	$(INSTALL_MXNET)
	$(if $(LATER),$(INSTALL) $(LATER))
	@touch $@

supported-python:
ifeq ($(VERSION),)
	@echo "There is no $(PYTHON) that runs. This package needs Python 3.8 or later: name one that is installed, as in" >&2
	@echo "    make $(or $(MAKECMDGOALS),demo) PYTHON=/usr/bin/python3.12" >&2
	@exit 1
else ifneq ($(filter $(TOO_OLD),$(VERSION)),)
	@echo "$(PYTHON) is Python $(VERSION), and this package needs Python 3.8 or later. Name another one: make $(or $(MAKECMDGOALS),demo) PYTHON=python3.12" >&2
	@exit 1
endif
