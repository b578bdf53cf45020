# In front of CMake, for people who type `make`. Everything it does is in CMakeLists.txt; `make help` lists the targets.

BUILD ?= build
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
CMAKE_FLAGS ?=

empty =
space = $(empty) $(empty)
QUESTION = What is the access code for the merry lantern?

configure = cmake -S . -B $(1) -DCMAKE_INSTALL_PREFIX=$(PREFIX) $(2) $(if $(CUDA),-DTERSE_CUDA=ON) $(CMAKE_FLAGS) >/dev/null
# Two more than processors: some tests wait for a browser, a server, ranks or a progress.
ctest = ctest --test-dir $(1) --output-on-failure -j $$(($(JOBS) + 2))
c_files = find include src tools tests bench examples -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh'
# Threads that wait sleep instead of polling: tests run side by side, and a demonstration may run on a busy machine.
demo demo-real test test-all test-models sanitize sanitize-fast: export OMP_WAIT_POLICY = passive
MAKEFLAGS += --no-print-directory

sanitize_fuzz = fuzz_gguf fuzz_model fuzz_codebook fuzz_state fuzz_request fuzz_chat fuzz_tokenizer fuzz_schema
# What `make sanitize-fast` runs: the suites of what reads files from elsewhere, of codecs and of the cache's memory, where an overrun is most
# likely. Each takes seconds with the sanitizers.
sanitize_fast = $(sanitize_fuzz) test_base test_gguf test_gguf_damage test_codebook test_codebook_damage test_codebook_memory \
  test_tokenizer test_tokenizer_damage test_special_tokens test_chat test_sample test_method test_codec test_gain_shape test_sign test_index \
  test_linear test_transform test_transform_format test_transform_codec test_reference_models test_partial test_gather_tokens test_top_k test_sealing test_cache_memory

.PHONY: all demo demo-real test test-all test-models faults sanitize sanitize-fast sanitize-threads sanitize-serve test-aarch64 check-format check-includes check-cuda bench install deb clean format help dependencies

all: dependencies
	@$(call configure,$(BUILD),)
	@cmake --build $(BUILD) -j $(JOBS) --target terse terse_command $(if $(CUDA),terse-cuda)

demo: all
	$(BUILD)/bin/terse run --chat -f data/demo.txt -p '$(QUESTION)' --temp 0 --kv f16
	$(BUILD)/bin/terse run --chat -f data/demo.txt -p '$(QUESTION)' --temp 0

demo-real: all
	@scripts/get-model.sh smollm2-135m >/dev/null
	$(BUILD)/bin/terse run -m "$$(scripts/get-model.sh smollm2-135m)" --chat -f data/demo.txt -p '$(QUESTION)' --temp 0 --kv f16
	$(BUILD)/bin/terse run -m "$$(scripts/get-model.sh smollm2-135m)" --chat -f data/demo.txt -p '$(QUESTION)' --temp 0

test: dependencies
	@$(call configure,$(BUILD),)
	@cmake --build $(BUILD) -j $(JOBS)
	$(call ctest,$(BUILD)) -LE '^long$$'

# The kernels of the backend cuda on the host need the toolkit's headers.
nvcc = $(shell PATH=$$PATH:/usr/local/cuda/bin command -v nvcc)
test-all: dependencies
	@$(if $(nvcc),,echo 'No CUDA toolkit here: the tests of the backend cuda are left out.')
	@$(call configure,$(BUILD),$(if $(nvcc),-DTERSE_CUDA_EMULATED=ON))
	@cmake --build $(BUILD) -j $(JOBS) --target all long_tests
	$(call ctest,$(BUILD))

# Faults, planted one at a time, which the tests must find: those of the processor, and with the toolkit's headers those of the GPU.
faults: dependencies
	tests/faults/plant_faults.py cpu --build $(BUILD)-faults/cpu
	@$(if $(nvcc),,echo 'No CUDA toolkit here: the faults of the backend cuda are left out.')
	$(if $(nvcc),tests/faults/plant_faults.py cuda --build $(BUILD)-faults/cuda)

# Public models against figures of other software, which are stored; with REFERENCE=1 these are made again first, by gigabytes of PyPI's packages.
public_models = smollm2-135m qwen2.5-coder-0.5b gemma-3-270m
each_model = xargs -d '\n' <$(BUILD)/public-models
test-models: dependencies
	@$(call configure,$(BUILD),)
	@cmake --build $(BUILD) -j $(JOBS) --target terse_command render_chat
	@scripts/get-model.sh $(public_models) >$(BUILD)/public-models || { echo 'test-models: skipped, since the models could not be fetched'; exit 0; }; \
	$(if $(REFERENCE),$(make_reference) &&) $(each_model) python3 tests/models/test_models.py $(BUILD)/bin/terse

make_reference = scripts/install-dependencies.sh python3-venv && python3 -m venv $(BUILD)-reference && \
	$(BUILD)-reference/bin/pip install --quiet torch transformers accelerate gguf tokenizers sentencepiece protobuf jinja2 && \
	$(each_model) $(BUILD)-reference/bin/python3 tests/models/make_reference.py

sanitize: dependencies
	@$(call configure,$(BUILD)-sanitize,-DTERSE_SANITIZE=ON)
	@cmake --build $(BUILD)-sanitize -j $(JOBS) --target all long_tests
	$(call ctest,$(BUILD)-sanitize)

sanitize-fast: dependencies
	@$(call configure,$(BUILD)-sanitize,-DTERSE_SANITIZE=ON)
	@cmake --build $(BUILD)-sanitize -j $(JOBS) --target $(sanitize_fast)
	$(call ctest,$(BUILD)-sanitize) -R '^($(subst $(space),|,$(sanitize_fast) $(sanitize_fuzz:=_by_chance)))$$'

# What several threads or sessions share. clang's OpenMP runtime says how it orders threads (libarcher); that runtime and oneDNN, which are
# not compiled with the sanitizer, are not watched.
sanitize_threads = test_base test_thread_pool test_engine test_batch test_prompt test_session_state test_session_file test_fork test_cpu_fork test_sealing
sanitize-threads: export OMP_WAIT_POLICY = passive
sanitize-threads: export TSAN_OPTIONS = ignore_noninstrumented_modules=1
sanitize-threads: dependencies
	@scripts/install-dependencies.sh clang-14 libclang-rt-14-dev libomp-14-dev
	@CC=clang-14 $(call configure,$(BUILD)-threads,-DTERSE_SANITIZE_THREADS=ON)
	@cmake --build $(BUILD)-threads -j $(JOBS) --target $(sanitize_threads)
	$(call ctest,$(BUILD)-threads) -R '^($(subst $(space),|,$(sanitize_threads)))$$'

# The server's tests, but for the page's and other clients', over commands that are built wholly with the sanitizers: memory, then threads.
sanitize_serve = serve_api serve_chat serve_lifecycle serve_limits serve_state
sanitize-serve: export OMP_WAIT_POLICY = passive
sanitize-serve: export TSAN_OPTIONS = ignore_noninstrumented_modules=1
sanitize-serve: dependencies
	@scripts/install-dependencies.sh clang-14 libclang-rt-14-dev libomp-14-dev
	@CC=clang-14 $(call configure,$(BUILD)-sanitize-clang,-DTERSE_SANITIZE=ON)
	@CC=clang-14 $(call configure,$(BUILD)-threads,-DTERSE_SANITIZE_THREADS=ON)
	@cmake --build $(BUILD)-sanitize-clang -j $(JOBS) --target terse_command
	@cmake --build $(BUILD)-threads -j $(JOBS) --target terse_command
	$(call ctest,$(BUILD)-sanitize-clang) -R '^($(subst $(space),|,$(sanitize_serve)))$$'
	$(call ctest,$(BUILD)-threads) -R '^($(subst $(space),|,$(sanitize_serve)))$$'

test-aarch64:
	@BUILD=$(BUILD)-aarch64 JOBS=$(JOBS) scripts/test-aarch64.sh

bench: dependencies
	@$(call configure,$(BUILD),)
	@cmake --build $(BUILD) -j $(JOBS)
	bench/run.sh $(BUILD)

install: all
	cmake --install $(BUILD)

# A folder of its own, because files lie elsewhere below /usr.
deb: PREFIX = /usr
deb: dependencies
	@scripts/install-dependencies.sh dpkg-dev file
	@$(call configure,$(BUILD)-deb,-DTERSE_TESTS=OFF)
	@cmake --build $(BUILD)-deb -j $(JOBS)
	@cd $(BUILD)-deb && cpack -G DEB

clean:
	rm -rf $(BUILD) $(BUILD)-deb $(BUILD)-sanitize $(BUILD)-sanitize-clang $(BUILD)-threads $(BUILD)-aarch64 $(BUILD)-reference $(BUILD)-faults

# Other versions of clang-format lay out the same style differently.
format:
	@scripts/install-dependencies.sh clang-format-14
	$(c_files) | xargs clang-format-14 -i

check-format:
	@scripts/install-dependencies.sh clang-format-14
	$(c_files) | xargs -n 64 -P $(JOBS) clang-format-14 --dry-run -Werror

check-includes:
	scripts/check-includes

check-cuda:
	scripts/check-cuda

dependencies:
	@scripts/install-dependencies.sh

help:
	@echo 'make                 build build/bin/terse and libterse (release)'
	@echo 'make CUDA=1          the same, and libterse-cuda for NVIDIA GPUs (needs the CUDA toolkit)'
	@echo 'make demo            build, then let the shipped model find a fact in a long text'
	@echo 'make demo-real       the same with SmolLM2 135M, which is fetched once (93 MB)'
	@echo 'make test            build and run all tests'
	@echo 'make test-all        the same with the tests that take minutes each: where the CUDA toolkit is, all kernels of the GPU, run on the host'
	@echo 'make test-models     fetch three public models (810 MB) and hold them to figures of other software, REFERENCE=1: made again'
	@echo 'make faults          plant faults in codecs, policies and caches, and show that the tests find each of them'
	@echo 'make sanitize        build and run all tests with AddressSanitizer and UBSan (build-sanitize/)'
	@echo 'make sanitize-fast   the same for suites that take seconds'
	@echo 'make sanitize-threads  the suites of threads and sessions with ThreadSanitizer (clang, build-threads/)'
	@echo 'make sanitize-serve  the server'"'"'s tests over commands built wholly with the sanitizers (clang)'
	@echo 'make test-aarch64    build for 64-bit ARM and test kernels, codecs and models under qemu (build-aarch64/)'
	@echo 'make bench           build and run the benchmarks'
	@echo 'make install         install below PREFIX ($(PREFIX)); DESTDIR is honoured'
	@echo 'make deb             a Debian package of the same: build-deb/terse_VERSION_ARCHITECTURE.deb'
	@echo 'make format          run clang-format (version 14) over the sources'
	@echo 'make check-format    name the lines that it would change'
	@echo 'make check-includes  name the files that include what their folder must not (a part of make test, too)'
	@echo 'make check-cuda      compile the CUDA sources to PTX, unoptimized: whether nvcc takes them (needs the CUDA toolkit)'
	@echo 'make clean           remove build/ and its like'
	@echo 'Every building target first installs the Debian packages it lacks; with none lacking, that does nothing.'
	@echo 'Variables: BUILD, PREFIX, JOBS, CMAKE_FLAGS (say CMAKE_FLAGS=-DBUILD_SHARED_LIBS=OFF).'
