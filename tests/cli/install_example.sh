#!/usr/bin/env bash
# Installs what was built into a prefix of its own, moves it, and checks what lies there (tests/support/installed.sh).
#
#     install_example.sh BUILD_DIR SOURCE_DIR C_COMPILER [C_FLAGS]
build=$1 source=$2 cc=$3 flags=${4:-}
. "$source/tests/support/installed.sh"

cmake --install "$build" --prefix "$work/prefix" >/dev/null
# The prefix is moved: nothing that was installed may know where it was.
mv "$work/prefix" "$work/moved"
check_installed "$work/moved"
