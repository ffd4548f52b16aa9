# Two commands: `make serve` and `make test`. Everything else is for those who work on Gapless.
PY := .venv/bin/python
# these are taken from the command line alone: WSL sets NAME in the environment
$(foreach name,DATA NAME,$(if $(filter command,$(origin $(name))),,$(eval override $(name) :=)))
# recipes get these as variables of the shell, with spaces, quotes and $ as they were given
$(foreach name,MODEL DEVICE DTYPE SLOTS SET DATA NAME,$(eval override export $(name) := $$(value $(name))))
export GAPLESS_FOLDER := $(value PWD)# where make was called: `make -C` changes the folder
SETTINGS := $(if $(MODEL),--set "model.directory=$$MODEL") $(if $(DEVICE),--set "model.device=$$DEVICE") \
            $(if $(DTYPE),--set "model.dtype=$$DTYPE") $(if $(SLOTS),--set "engine.slots=$$SLOTS") $(if $(SET),--sets "$$SET")
SOURCES := python_backends client front commands examples build benchmarks models/recipe tests
QUICK := $(addprefix tests/pure/,client front test_architecture.py test_delivery.py test_doc_links.py test_house.py test_messages.py \
         test_router.py test_scheduling.py test_streams.py test_waiting.py test_words.py)

# two processes: tests of the server wait more than they compute (tests/conftest.py); ARGS="-n 0" for one, as a debugger needs it
SIDE_BY_SIDE := -n 2 --no-loadscope-reorder
REPORT := --junitxml=run/tests.xml --durations=40 --durations-min=1

.PHONY: help quick settings serve cluster finetune chat bench perf stats top trace test test-all test-slow fuzz lint format docs model-card stale clean

help:           ## this list
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/ -/'

serve:          ## serve SmolLM2-135M-Instruct; MODEL=bundled (the small model), or a checkpoint directory, a GGUF file, or ORG/NAME on the hub; DEVICE=cuda DTYPE=bfloat16 SLOTS=64 SET="section.field=value"
	@build/set-up
	@exec $(PY) -m commands serve $(SETTINGS)

cluster:        ## serve with two instances; the same variables and the same model as serve
	@$(MAKE) --no-print-directory serve SET="cluster.instances=2 $$SET"

finetune:       ## train an adapter in a running server with SET=adapters.directory=adapters; DATA=docs/examples/remove_comments.jsonl NAME=no_comments ARGS="--rank 8 --epochs 2"; MODEL=, SET= as for serve
	@build/set-up
	@$(PY) -m commands finetune $(SETTINGS) submit $(if $(DATA),"$$DATA") $(if $(NAME),--name "$$NAME") $(ARGS)

chat:           ## talk to a running server in the terminal; URL=127.0.0.1:8001 ARGS="--temperature 0.7"
	@build/set-up
	@$(PY) -m commands chat $(if $(URL),--url $(URL)) $(ARGS)

bench:          ## load test of a running server, with prompts of the bundled model's tasks; URL=127.0.0.1:8001 ARGS="--quick", --rate, --json, --plot; ARGS=--help tells more
	@build/set-up $(if $(findstring --plot,$(ARGS)),dev)
	@$(PY) -m commands bench $(if $(URL),--url $(URL)) $(ARGS)

perf:           ## NVIDIA's perf_analyzer against a server with SET=server.statistics=true; URL=127.0.0.1:8001 CONCURRENCY="1 8 16" ARGS=
	@build/set-up
	@for concurrency in $(or $(CONCURRENCY),1 8 16); do \
	  build/perf_analyzer -m ensemble -i grpc --streaming --async -u $(or $(URL),127.0.0.1:8001) --input-data client/perf_inputs.json \
	    --concurrency-range $$concurrency --measurement-mode count_windows --measurement-request-count $$((48 + 16 * concurrency)) \
	    --stability-percentage 30 $(ARGS) \
	    || { echo 'perf: "restricted" above means: start the server with make serve SET=server.statistics=true;' >&2; \
	         echo '      "stable": the machine does other work as well; ARGS="--stability-percentage 60" asks for less' >&2; exit 1; }; \
	done

stats:          ## how good predicted lengths have been: a table and a picture; MODEL=, SET= as for serve; ARGS="--last 1000 --plot stats.png"
	@build/set-up dev
	@$(PY) -m commands stats $(SETTINGS) $(ARGS)

top:            ## what each instance of a cluster carries, again and again; docs/llumnix.md
	@build/set-up
	@$(PY) -m commands top $(ARGS)

trace:          ## what the instances on this host do in their next steps, for ui.perfetto.dev; docs/tracing.md
	@pkill -USR1 -f '^gapless-instance-' || { echo 'no instance of ours runs here' >&2; exit 1; }
	@echo 'it is written into this folder; the server says how it is called'

quick:          ## the first circle of tests, some seconds: the rules of code and docs, the client, streams and scheduling by the toy engine
	@build/set-up dev
	$(PY) -m ruff check $(SOURCES)
	$(PY) -m ruff format --check $(SOURCES)
	$(PY) -m pytest $(QUICK) $(ARGS)

test:           ## the second circle: all but what is slow and hard to break; how long each test took is in run/tests.xml; ARGS="-k streams" for some
	@build/set-up dev
	$(PY) -m pytest -m "not slow" $(SIDE_BY_SIDE) $(REPORT) $(ARGS)

test-all:       ## the third circle: everything that can run on this machine; ARGS= as for test
	@build/set-up dev
	$(PY) -m pytest $(SIDE_BY_SIDE) $(REPORT) $(ARGS)

test-slow:      ## only the slow tests: those that make test leaves out; ARGS= as for test
	@build/set-up dev
	$(PY) -m pytest -m slow $(SIDE_BY_SIDE) --durations=40 --durations-min=1 $(ARGS)

fuzz:           ## ten thousand random requests against a server of its own, then the door for ten minutes; REQUESTS=… SECONDS=… SEED=… FUZZ_MODEL=bundled
	@build/set-up dev
	$(PY) -m tests.support.server.fuzzing --requests $(or $(REQUESTS),10000) --seed $(or $(SEED),1) --model $(or $(FUZZ_MODEL),toy)
	$(PY) -m tests.support.fuzzed_door -max_total_time=$(or $(SECONDS),600) -artifact_prefix=/tmp/

settings:       ## write gapless.toml from the declarations in python_backends/settings
	@build/set-up
	@$(PY) -m commands.settings

lint:           ## ruff, mypy, codespell
	@build/set-up dev
	$(PY) -m ruff check $(SOURCES)
	$(PY) -m ruff format --check $(SOURCES)
	$(PY) -m mypy
	$(PY) -m codespell_lib

format:         ## let ruff format and mend what it can
	@build/set-up dev
	$(PY) -m ruff check --fix $(SOURCES)
	$(PY) -m ruff format $(SOURCES)

docs:           ## the docs as a site, in run/site; a link to no file is an error
	@build/set-up docs
	@$(PY) -m sphinx -q -n -W --keep-going -c build/site -d run/site-pages . run/site $(ARGS)
	@echo 'docs: run/site/index.html'

model-card:     ## measure the bundled model on held-out prompts and write the table into its card; ARGS="--prompts 50" for fewer
	@build/set-up
	$(PY) -m models.recipe --evaluate $(ARGS)

stale:          ## published results that are older than the code that they measure
	@build/set-up
	@$(PY) -m benchmarks.results_file --stale

clean:          ## remove the environment and caches
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
