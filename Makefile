# In front of CMake, for people who type `make`. Everything it does is in CMakeLists.txt; `make help` lists the targets.

BUILD ?= build
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
CMAKE_FLAGS ?=

QUESTION = What is the access code for the merry lantern?

configure = cmake -S . -B $(1) -DCMAKE_INSTALL_PREFIX=$(PREFIX) $(2) $(CMAKE_FLAGS) >/dev/null
ctest = ctest --test-dir $(1) --output-on-failure -j $(JOBS)
# Threads that wait shall sleep, not spin: tests run side by side, and a demonstration may run on a busy machine.
demo test sanitize: export OMP_WAIT_POLICY = passive
MAKEFLAGS += --no-print-directory

.PHONY: all demo test sanitize test-aarch64 bench install clean format help dependencies

all: dependencies
	@$(call configure,$(BUILD),)
	@cmake --build $(BUILD) -j $(JOBS) --target terse terse_command

demo: all
	$(BUILD)/bin/terse run --chat -f data/demo.txt -p '$(QUESTION)' --temp 0 --kv f16
	$(BUILD)/bin/terse run --chat -f data/demo.txt -p '$(QUESTION)' --temp 0

test: dependencies
	@$(call configure,$(BUILD),)
	@cmake --build $(BUILD) -j $(JOBS)
	$(call ctest,$(BUILD))

sanitize: dependencies
	@$(call configure,$(BUILD)-sanitize,-DTERSE_SANITIZE=ON)
	@cmake --build $(BUILD)-sanitize -j $(JOBS)
	$(call ctest,$(BUILD)-sanitize)

test-aarch64:
	@BUILD=$(BUILD)-aarch64 JOBS=$(JOBS) scripts/test-aarch64.sh

bench: dependencies
	@$(call configure,$(BUILD),)
	@cmake --build $(BUILD) -j $(JOBS)
	bench/run.sh $(BUILD)

install: all
	cmake --install $(BUILD)

clean:
	rm -rf $(BUILD) $(BUILD)-sanitize $(BUILD)-aarch64

format:
	find include src tools tests bench examples -name '*.[ch]' | xargs clang-format -i

dependencies:
	@scripts/install-dependencies.sh

help:
	@echo 'make            build build/bin/terse and libterse (release)'
	@echo 'make demo       build, then let the shipped model find a fact in a long text'
	@echo 'make test       build and run all tests'
	@echo 'make sanitize   build and run all tests with AddressSanitizer and UBSan (build-sanitize/)'
	@echo 'make test-aarch64  build for 64-bit ARM and test kernels, codecs and models under qemu (build-aarch64/)'
	@echo 'make bench      build and run the benchmarks'
	@echo 'make install    install below PREFIX ($(PREFIX)); DESTDIR is honoured'
	@echo 'make format     run clang-format over the sources'
	@echo 'make clean      remove build/, build-sanitize/ and build-aarch64/'
	@echo 'Every building target first installs the Debian packages it lacks; with none lacking, that does nothing.'
	@echo 'Variables: BUILD, PREFIX, JOBS, CMAKE_FLAGS (say CMAKE_FLAGS=-DBUILD_SHARED_LIBS=OFF).'
