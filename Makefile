# `make run` and `make test` do all their own set-up; `make setup` alone does nothing when .venv is up to date.
PYTHON ?= python3.11
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: setup browser run test bench bench-sweep
setup: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo,test]'
	touch $@

# The main job: a set by seed, a real model through two engines, their answers side by side; then a small sweep and its
# page. Started again it goes on.
RUN := runs/demo
SIZES := --budget 256 --budget 512 --budget 1024 --budget 2048 --budget 4096
run: setup
	@mkdir -p $(RUN)
	@test -f $(RUN)/set.jsonl || $(BIN)/recall generate --seed 1 $(SIZES) --context 4096 \
	    --depth 0.1 --depth 0.5 --depth 0.9 --format completion -o $(RUN)/set.jsonl
	$(BIN)/recall score $(RUN)/set.jsonl --engine ring --model demo -o $(RUN)/ring.jsonl
	$(BIN)/recall score $(RUN)/set.jsonl --engine hf --model demo -o $(RUN)/hf.jsonl --reference $(RUN)/ring.jsonl
	$(BIN)/recall compare $(RUN)/ring.jsonl $(RUN)/hf.jsonl
	$(BIN)/recall sweep --engine ring --model demo --format completion --lengths 160,256,512,1024,2048,4096 \
	    --depths 5 --seeds 3 -o $(RUN)/sweep.jsonl
	$(BIN)/recall report $(RUN)/sweep.jsonl $(RUN)/ring.jsonl $(RUN)/hf.jsonl -o $(RUN)/report.html

# The page of `recall report` is tested in a real browser, the one thing here that pip does not bring.
BROWSER := chromium chromium-driver
browser:
	@{ command -v chromium && command -v chromedriver; } >/dev/null || { \
	    echo "installing $(BROWSER), which the tests of the report need"; \
	    as_root=$$([ "$$(id -u)" = 0 ] || echo sudo); \
	    $$as_root apt-get update -qq && $$as_root apt-get install -qq -y --no-install-recommends $(BROWSER) >/dev/null; \
	} || { echo "make test needs chromium and chromedriver: install them with your system's packages" >&2; exit 1; }

# Two processes of one thread each: most tests are too small for two threads. The demo model is converted before, once.
test: setup browser
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -c "from recall import demo; demo.demo_folder(print); demo.demo_gguf(print)"
	TORCH_DEVICE_BACKEND_AUTOLOAD=0 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

# How fast `ring` and `hf` read, and in how much memory; takes most of an hour on two cores.
bench: setup
	TORCH_DEVICE_BACKEND_AUTOLOAD=0 $(BIN)/python -m tests.bench_reading

# What a grid of lengths and depths costs from one read, and cell by cell; takes ten minutes on two cores.
bench-sweep: setup
	TORCH_DEVICE_BACKEND_AUTOLOAD=0 $(BIN)/python -m tests.bench_sweep
