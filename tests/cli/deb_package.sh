#!/usr/bin/env bash
# Makes the Debian package of what was built, installs it into a clean root, checks what lies there (tests/support/installed.sh), and removes it again.
#
#     deb_package.sh BUILD_DIR SOURCE_DIR C_COMPILER
build=$1 source=$2 cc=$3 flags=
for program in dpkg dpkg-deb dpkg-shlibdeps file; do
    command -v $program >/dev/null && continue
    echo "skipped: there is no $program here (Debian's dpkg-dev and file)" >&2
    exit 77
done
. "$source/tests/support/installed.sh"

(cd "$work" && cpack --config "$build/CPackConfig.cmake" -B "$work/package" >"$work/log" 2>&1) || fail "cpack: $(cat "$work/log")"
package=$(echo "$work"/package/terse_*.deb)
[ -s "$package" ] || fail "no package: $(cat "$work/log")"

# What it depends on was found out, and it does not depend on itself.
field() { dpkg-deb -f "$package" "$1"; }
[ "$(field Package)" = terse ] || fail "the package is called $(field Package)"
[ "$(field Version)" = "$("$build/bin/terse" --version | sed -n 's/^terse \([0-9.]*\).*/\1/p')" ] || fail "version: $(field Version)"
for library in libc6 libdnnl2 libpcre2-8-0 libmicrohttpd12; do
    field Depends | grep -q "\b$library\b" || fail "it does not depend on $library: $(field Depends)"
done
if field Depends | grep -q terse; then fail "it depends on itself: $(field Depends)"; fi
[ -z "$(dpkg-deb -c "$package" | awk '$6 !~ /^\.\/(usr\/.*)?$/ { print $6 }')" ] || fail "files outside of /usr: $(dpkg-deb -c "$package")"

# A clean root has nothing, not even a shell: the package's scripts run outside of it, with an ldconfig that only notes that it was called, and libraries
# are this system's.
root=$work/root
mkdir -p "$root/var/lib/dpkg/info" "$root/var/lib/dpkg/updates" "$work/bin"
touch "$root/var/lib/dpkg/status"
printf '#!/bin/sh\necho called >>"%s"\n' "$work/ldconfig-called" >"$work/bin/ldconfig"
chmod +x "$work/bin/ldconfig"
in_root() {
    PATH=$work/bin:$PATH:/usr/sbin:/sbin dpkg --root="$root" --log=/dev/null --force-depends --force-not-root --force-script-chrootless "$@" >"$work/log" 2>&1 ||
        fail "dpkg $*: $(cat "$work/log")"
}
in_root --install "$package"
dpkg-query --admindir="$root/var/lib/dpkg" -W -f '${db:Status-Status}' terse | grep -qx installed || fail "it is not installed"
[ -s "$work/ldconfig-called" ] || fail "the library is not made known to ldconfig"
check_installed "$root/usr"
"$root/usr/bin/terse" run -p 'It was a dark' -n 4 --temp 0 --kv terse-4 >"$work/text" 2>"$work/summary" || fail "the command: $(cat "$work/summary")"
grep -q '[a-z]' "$work/text" || fail "the command writes nothing"
in_root --remove terse
[ -z "$(find "$root/usr" -type f 2>/dev/null)" ] || fail "files are left: $(find "$root/usr" -type f)"
