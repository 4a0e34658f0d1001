# Everything runs in .venv, which `make` creates; only Python 3.11+, pip and a C compiler are needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(shell find src -type f -not -name '*.pyc' 2>/dev/null)
PAPER := $(shell find paper/src paper/README.md -type f -not -name '*.pyc' 2>/dev/null)
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

# These modules need Triton, which only GPU builds of torch include.
KERNELS := $(foreach name,backward forward tiles,--ignore-glob='*/hetcal_paper/kernels/$(name).py') --ignore-glob='*/_numeric/triton_kernels.py'

.PHONY: demo test lint bench docs faults fuzz audit sbom compatibility release mutation clean

demo: $(VENV)/.demo
	$(BIN)/hetcal demo --output demo-output

test: lint
	$(BIN)/python -m pytest -n auto --dist worksteal tests paper/tests
	$(BIN)/python -m pytest -q -p no:cacheprovider --pyargs hetcal hetcal_paper $(KERNELS)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/run.py

# Run the code of all pages, including the slow ones, draw the figures, and build the site with warnings as errors.
docs: $(VENV)/.docs $(VENV)-sources/.done
	HETCAL_SLOW_DOCS=1 $(BIN)/python -m pytest -q tests/test_docs.py
	HETCAL_SLOW_DOCS=1 $(VENV)-sources/bin/python -m pytest -q tests/newcomer
	$(BIN)/python docs/figures.py
	$(BIN)/python -m sphinx -q -E -a -W -n --keep-going -b html docs build/site
	@echo "open file://$(CURDIR)/build/site/index.html"

faults: $(VENV)/.test
	HETCAL_FAULTS=100 $(BIN)/python -m pytest -s tests/faults

fuzz: $(VENV)/.fuzz
	$(BIN)/python tools/fuzz/run.py

# List packages without a pin, analyse the source, and look up the pinned packages in PyPI's vulnerability database.
audit: $(VENV)-tools/.done $(VENV)/.test
	$(BIN)/python tools/pins.py
	$(VENV)-tools/bin/bandit -q -c pyproject.toml -r src paper/src tools benchmarks
	$(VENV)-tools/bin/pip-audit --strict --no-deps --disable-pip -r constraints.txt

sbom: $(VENV)-tools/.done $(VENV)/.test
	mkdir -p dist
	$(VENV)-tools/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o dist/sbom.cdx.json $(BIN)/python

# For example: make compatibility PYTHONS="python3.11 python3.12 python3.13"
compatibility: $(VENV)-tools/.done
	$(VENV)-tools/bin/python tools/compatibility.py $(PYTHONS)

# Build, check and try out the files for PyPI and conda-forge, and write them to dist/; see CONTRIBUTING.md.
release: $(VENV)-tools/.done
	$(VENV)-tools/bin/python tools/release.py

$(VENV)-tools/.done: tools/requirements.txt
	$(PYTHON) -m venv $(VENV)-tools
	$(VENV)-tools/bin/python -m pip --disable-pip-version-check install --quiet -r tools/requirements.txt
	touch $@

# Measure how many random code changes the tests detect; see docs/mutation-testing.md.
MUTANTS ?= 60
mutation: $(VENV)/.mutation
	$(BIN)/python tools/mutation/run.py --mutants $(MUTANTS) $(MUTATE)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Dependencies are reinstalled when pyproject.toml or constraints.txt changes, the package when a source file changes.
$(VENV)/.demo-deps: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) '.[cli,plot,report]'
	touch $@
$(VENV)/.demo: $(VENV)/.demo-deps $(SOURCES)
	$(PIP) --no-deps --force-reinstall .
	touch $@
$(VENV)/.test-deps: pyproject.toml paper/pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) '.[dev]' ./paper
	touch $@
$(VENV)/.test: $(VENV)/.test-deps $(SOURCES) $(PAPER)
	$(PIP) --no-deps --force-reinstall . ./paper
	touch $@
$(VENV)/.docs: $(VENV)/.test
	$(PIP) '.[docs]'
	touch $@
# An environment that extends .venv: a file *.pth in its packages names those of .venv.
$(VENV)-sources/.done: $(VENV)/.test-deps docs/requirements-sources.txt
	$(BIN)/python -m venv $(VENV)-sources
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > \
		"$$($(VENV)-sources/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/extends.pth"
	$(VENV)-sources/bin/python -m pip --disable-pip-version-check install --quiet \
		-c constraints.txt -r docs/requirements-sources.txt
	touch $@
$(VENV)/.bench: $(VENV)/.test benchmarks/requirements.txt
	$(PIP) -r benchmarks/requirements.txt
	touch $@
$(VENV)/.fuzz: $(VENV)/.test tools/fuzz/requirements.txt
	$(PIP) -r tools/fuzz/requirements.txt
	touch $@
$(VENV)/.mutation: $(VENV)/.test tools/mutation/requirements.txt
	$(PIP) -r tools/mutation/requirements.txt
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-sources $(VENV)-tools .fuzz demo-output build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
