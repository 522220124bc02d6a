# make demo       set everything up, run the quickstart and say where its report is
# make test       linter, format and the whole test suite
# make dashboard  the dashboard on http://127.0.0.1:8501
# make lint       linter and format alone
#
# PYTHON chooses the interpreter (3.11 or later). TORCH_INDEX is the URL of a package index for torch: set it to the
# index of CPU builds to do without CUDA.

PYTHON ?= python3
TORCH_INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RESULTS := results
TORCH := torch==2.13.0
TRITON_BESIDE_CPU_TORCH := triton==3.9.0

.PHONY: demo test dashboard lint

demo: $(STAMP)
	$(BIN)/moe-workbench run quickstart --results $(RESULTS)
	$(BIN)/moe-workbench report latest --results $(RESULTS) -o $(RESULTS)/quickstart.html
	@echo
	@echo "report     $(RESULTS)/quickstart.html"
	@echo "run        $(RESULTS)/$$(ls -t $(RESULTS) | grep -m 1 -- -quickstart-)"
	@echo "dashboard  make dashboard"

test: lint
	$(BIN)/pytest -n 2 --dist loadfile -m "not alone"
	$(BIN)/pytest -m alone

dashboard: $(STAMP)
	$(BIN)/moe-workbench dashboard --results $(RESULTS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# torch goes first, alone, so that its build (CPU or CUDA) decides and nothing after it replaces it. A CUDA build
# brings its own triton.
$(STAMP): pyproject.toml setup.py constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed")'
	$(BIN)/python -m pip install $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	if $(BIN)/python -c 'import sys, torch; sys.exit(bool(torch.version.cuda or torch.version.hip) or sys.platform != "linux")'; \
	then $(BIN)/python -m pip install $(TRITON_BESIDE_CPU_TORCH); fi
	$(BIN)/python -m pip install -c constraints.txt -e '.[dashboard,test]'
	touch $(STAMP)
