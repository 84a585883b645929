# Everything starts here. The only requirements are Python 3.11 (with venv and headers) and a C++20 compiler.
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
VENV := .venv
OTHERS := 3.10 3.12 3.13 3.14
RUN := PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(VENV)/bin/python
BASE ?= HEAD
PAIRS ?=
CASES ?=
DEMO_FOLDER ?= runs/demo
DEMO_ARGUMENTS ?=
RELEASE_ARGUMENTS ?=
GPU_ARGUMENTS ?=
GPU_PYTHON ?= 3.12
WALKS := tests/fleet/test_walk.py tests/fleet/test_torch.py tests/service/test_handles.py tests/train/test_ends.py tests/train/test_hosts.py tests/service/test_life.py tests/service/test_ends.py

.PHONY: help demo test test-adapters test-all quick bench bench-quick bench-train bench-tune bench-parity bench-compare bench-fleet bench-save bench-service bench-sequence-models bench-plugins curves study-tree study-capacity study-priorities study-scaling bench-report conformance docs docs-test release gpu gpu-results gpu-wheel mutants-gpu soak sanitize mutants wheel format lint clean setup setup-others bench-rollouts

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## the environment .venv: dependencies, the compiled core, relive installed in place
	@scripts/setup.sh full 3.11 $(VENV)

demo: ## a whole training run on CartPole-v1 through a shared table; installs only the packages that it needs
	@scripts/setup.sh demo 3.11 $(VENV)
	@$(VENV)/bin/relive train dqn --env CartPole-v1 --actors 2 --run-dir $(DEMO_FOLDER) $(DEMO_ARGUMENTS)

test: setup ## style, types, Python, C++, other Pythons, the portable build (10 to 20 minutes on 2 cores, 15 to 35 the first time)
	@$(RUN) scripts/run_tests.py --others "$(OTHERS)"

test-all: setup ## before a release: adds the tests marked thorough, and all of the core's on other Pythons
	@$(RUN) scripts/run_tests.py --all --others "$(OTHERS)"

quick: setup ## style, types and the Python tests of Python 3.11 only
	@$(RUN) scripts/run_tests.py --quick

lint: setup ## style, types and words only
	@$(RUN) scripts/run_tests.py --lint

bench: setup ## all measurements, including other libraries (about 35 minutes): benchmarks/results
	@$(RUN) -m benchmarks.run

bench-quick: setup ## a short version of bench (about 3 minutes)
	@$(RUN) -m benchmarks.run --quick

gpu: setup ## everything that needs a GPU: tests, soak, measurements, training; small without one: runs/gpu
	@$(RUN) scripts/gpu.py $(GPU_ARGUMENTS)

gpu-results: ## keeps the results of a run on a card in benchmarks/results: FOLDER=runs/gpu
	@$(RUN) scripts/gpu_results.py "$(or $(FOLDER),runs/gpu)"

mutants-gpu: setup ## changes one place of the GPU kernels at a time (NAMES=... for some): tests/gpu must go red (7 minutes)
	@$(RUN) scripts/gpu_mutants.py $(NAMES)

gpu-wheel: setup ## dist/relive-gpu.tar.gz: `make gpu` for a machine without a network (GPU_PYTHON=3.12)
	@$(RUN) scripts/gpu_archive.py --python $(GPU_PYTHON)

bench-train: setup ## training compared with Stable-Baselines3 at equal work (about 40 minutes): benchmarks/results/train.json
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt "gymnasium[mujoco]"
	@$(RUN) -m benchmarks.train

bench-tune: setup ## the tuner's predictions compared with measurements, 12 settings (7 minutes): benchmarks/results/tune.json
	@$(RUN) -m benchmarks.tune

bench-parity: setup ## learned returns compared with Stable-Baselines3, ten seeds or more (hours; continues after a stop)
	@$(RUN) -m benchmarks.parity

bench-compare: setup ## this tree compared with a commit, in pairs: BASE=COMMIT [PAIRS=24] [CASES=sample,update]
	@$(RUN) -m benchmarks.compare "$(BASE)" $(if $(PAIRS),--pairs "$(PAIRS)") $(if $(CASES),--cases "$(CASES)")

bench-fleet: setup ## two shards compared with one table, batches from another node with other libraries: benchmarks/results/fleet, nodes
	@$(RUN) -m benchmarks.run --only fleet,nodes

bench-save: setup ## saves and loads compared with the disk and with memory (two minutes): benchmarks/results/saving.json
	@$(RUN) -m benchmarks.saving

bench-service: setup ## the service's door: TLS, hostile clients beside an honest one, restarts (20 minutes): benchmarks/results/door
	@$(RUN) -m benchmarks.service_door

bench-plugins: setup ## programs of Stable-Baselines3, Tianshou and RLlib with their own buffers and with the adapters, in pairs (40 minutes): benchmarks/results/plugins
	@$(RUN) -m benchmarks.plugins

bench-sequence-models: setup ## batches of windows and a transformer's step, compared with other libraries: benchmarks/results/sequence_models.json
	@$(RUN) -m benchmarks.sequence_models

bench-rollouts: setup ## rollouts of a language model in relive and in TransferQueue (20 minutes): benchmarks/results/rollouts.json
	@$(RUN) -m benchmarks.rollouts

study-tree: setup ## trees of other fan-outs compared with the core's (two minutes): benchmarks/results/tree.json
	@$(RUN) -m benchmarks.study_tree

study-capacity: setup ## returns by capacity, updates a step and age of the data, DQN and SAC (continues after a stop)
	@$(RUN) -m benchmarks.study_capacity

study-priorities: setup ## steps to a threshold with priorities and with uniform draws, ten seeds (continues after a stop)
	@$(RUN) -m benchmarks.study_priorities

study-scaling: setup ## actors and learners on the cores of this machine, and the model for more cores (six minutes)
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt "gymnasium[box2d]"
	@$(RUN) -m benchmarks.study_scaling

curves: setup ## the examples at length, with the curves of their pages: NAMES="sac ppo" for some (hours; continues after a stop)
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt "gymnasium[box2d]" jax MinAtar minigrid mpe2 optax pettingzoo scipy
	@$(RUN) examples/curves.py $(NAMES)

bench-report: setup ## rewrites the table of README.md from benchmarks/results
	@$(RUN) -m benchmarks.report

conformance: setup ## Reverb's semantics: every case on dm-reverb and on relive (a minute; 3 more the first time)
	@$(RUN) -m conformance.run

test-adapters: setup ## the adapters on the libraries themselves, each in an environment of its own: [ADAPTERS="sb3 torchrl"]
	@$(RUN) scripts/test_adapters.py $(ADAPTERS)

soak: setup ## the stress programmes at full length (an hour), and the random walks and ends (two and a half hours)
	@$(RUN) scripts/stress.py soak
	@RELIVE_SOAK=1 $(RUN) -m pytest --timeout 7200 $(wildcard tests/test_stress.py) tests/processes tests/naive tests/core tests/contract
	@RELIVE_SOAK=1 $(RUN) -m pytest --timeout 7200 $(WALKS)

sanitize: setup ## C++ tests under ThreadSanitizer and AddressSanitizer
	@$(RUN) scripts/cpp_tests.py sanitize

mutants: setup ## switches protocol rules off one at a time (RULES=... for some): stress must go red
	@$(RUN) scripts/stress.py mutants $(RULES)

docs: ## the site: pages, search, reference of every public name: build/site (installs mkdocs into .venv-docs)
	@scripts/setup.sh demo 3.11 $(VENV)
	@scripts/docs.sh build

docs-test: ## builds the site and checks it in headless Chromium: navigation, search, widths, contrast
	@scripts/setup.sh demo 3.11 $(VENV)
	@scripts/docs.sh test

release: ## builds, checks and tests sdist and wheels: all but the upload (RELEASE_ARGUMENTS="--home URL"): dist/release
	@$$(scripts/find_python.sh 3.11) scripts/release/release.py $(RELEASE_ARGUMENTS)

wheel: setup ## dist/*.whl; the wheel for Python 3.12 also serves all later versions
	@scripts/wheels.sh "3.10 3.11 3.12"

format: setup ## formats Python and C++
	@$(VENV)/bin/ruff check --fix --quiet . && $(VENV)/bin/ruff format --quiet .
	@git ls-files --cached --others --exclude-standard 'cpp/*.cpp' 'cpp/*.hpp' 'tests/*.cpp' 'tests/*.hpp' | xargs -r $(VENV)/bin/clang-format -i

clean: ## removes environments, builds and caches (not benchmarks/results, not runs)
	rm -rf $(VENV) .venv-* build dist benchmarks/.venvs .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
