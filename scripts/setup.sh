#!/usr/bin/env bash
# Makes one virtual environment with relive built and installed in it. Does nothing where nothing changed.
# usage: scripts/setup.sh full VERSION DIR       everything, relive as an editable install
#        scripts/setup.sh demo VERSION DIR       only the packages of a training run; full adds the rest to the same folder
#        scripts/setup.sh core VERSION DIR       no learning stack, relive installed from a wheel as users install it
#        scripts/setup.sh portable VERSION DIR   the same, built without the Linux file (LocalMemory only)
# The environments of core and portable only run tests: pip, cmake and ninja are those of .venv, if it is there, and the
# module is linked with the core that the C++ tests have compiled (scripts/cpp_tests.py), which has their fail points.
set -euo pipefail
kind="${1:?kind}" version="${2:?version}" folder="${3:?folder}"
cd "$(dirname "$0")/.."
log() { printf '[setup %s] %s\n' "$folder" "$*" >&2; }
beat() { # runs a command; a line every 10 seconds says that it goes on
  local doing="$1" start=$SECONDS beats status=0
  shift
  log "$doing ..."
  (while sleep 10; do log "$doing: $((SECONDS - start)) s so far"; done) &
  beats=$!
  "$@" || status=$?
  kill "$beats" 2> /dev/null && wait "$beats" 2> /dev/null || true
  return "$status"
}

digest() { # of the contents and names of the files under the given paths
  find "$@" -type f ! -name '*.pyc' ! -name '*.so' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c 1-16
}
is_stamped() { [ -f "$folder/.stamp-$1" ] && [ "$(cat "$folder/.stamp-$1")" = "$2" ]; }
stamp() { printf '%s' "$2" > "$folder/.stamp-$1"; }

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT="$PWD/constraints.txt"
case "$kind" in full | demo) is_main=yes ;; *) is_main="" ;; esac
main="$PWD/.venv" # has pip and the tools to build with
[ -z "$is_main" ] && [ -f "$main/.stamp-dependencies" ] || main=""

# Fails at once, and in one sentence, where the build would fail after minutes.
for compiler in "${CXX:-}" c++ g++ clang++; do
  [ -n "$compiler" ] && command -v ${compiler%% *} > /dev/null 2>&1 && break
  compiler=""
done
if [ -z "$compiler" ]; then
  log "relive is built from C++20 and found no compiler (CXX, c++, g++, clang++): install one, for example" \
    "'apt-get install g++' (Debian, Ubuntu) or 'dnf install gcc-c++' (Fedora), and run this command again"
  exit 1
fi

# 1. The environment itself. One whose Python went away is made again.
if [ -e "$folder" ] && ! "$folder/bin/python" -c '' 2>/dev/null; then rm -rf "$folder"; fi
if [ ! -e "$folder" ]; then
  python="$(scripts/find_python.sh "$version")"
  log "new environment from $python"
  "$python" -m venv ${main:+--without-pip} "$folder"
fi
export PATH="$PWD/$folder/bin${main:+:$main/bin}:$PATH"
if [ -n "$main" ]; then pip=("$main/bin/python" -m pip --python "$folder/bin/python"); else pip=("$folder/bin/python" -m pip); fi

# 2. Everything but relive.
asked="$(digest constraints.txt pyproject.toml scripts/requirements.py)"
dependencies="$kind $asked"
if [ "$kind" = demo ] && is_stamped dependencies "full $asked"; then dependencies="full $asked"; fi # has them all
if ! is_stamped dependencies "$dependencies"; then
  "${main:-$folder}/bin/python" scripts/requirements.py "$kind" ${main:+--without-tools} > "$folder/.requirements.txt"
  # Bytecode is compiled when a module is first imported: a demo imports a tenth of the modules of PyTorch.
  [ "$kind" = demo ] && options=(--no-compile) || options=()
  beat "installing $(wc -l < "$folder/.requirements.txt") packages and the packages that they need" \
    "${pip[@]}" install --quiet "${options[@]}" --requirement "$folder/.requirements.txt"
  # NIXL asks for torch, which relive's reads do not need; constraints.txt says which one.
  if [ "$kind" = full ] && ! "${pip[@]}" install --quiet --no-deps nixl-cu12; then
    log "no NIXL for this Python or machine: its tests are skipped, and say so"
  fi
  stamp dependencies "$dependencies"
fi

export RELIVE_SYMBOLS="${RELIVE_SYMBOLS:-ON}" # a native backtrace then names functions

# 3. relive: rebuilt when its C++ changed; a plain install also when its Python did. An editable install lists the
#    modules that it found, so it is made again when a module is added, moved or removed.
sources=(cpp CMakeLists.txt pyproject.toml)
[ -n "$is_main" ] || sources+=(src tests/cpp/CMakeLists.txt)
modules="$(find src -name '*.py' | LC_ALL=C sort | sha256sum | cut -c 1-16)"
sources_digest="$(digest "${sources[@]}")"
relive_of() { echo "$1 $asked ${RELIVE_LTO:-} ${RELIVE_TESTING:-} ${RELIVE_SYMBOLS:-} $modules $sources_digest"; }
if [ "$kind" = demo ] && is_stamped relive "$(relive_of full)"; then kind=full; fi # there is a better build already
# Optimisation costs most of the build and changes no behaviour; tests and the demo do with little of it.
[ "$kind" = full ] || export RELIVE_LTO="${RELIVE_LTO:-OFF}" RELIVE_QUICK="${RELIVE_QUICK:-ON}"
relive="$(relive_of "$kind")"
if ! is_stamped relive "$relive"; then
  arguments=(--quiet --no-deps --no-build-isolation)
  [ "$kind" = demo ] && jobs="$(nproc)" || jobs=2
  export CMAKE_BUILD_PARALLEL_LEVEL="${CMAKE_BUILD_PARALLEL_LEVEL:-$jobs}"
  if [ -z "$is_main" ]; then
    case "$kind" in core) of=unit ;; portable) of=portable && export RELIVE_PORTABLE=ON ;; esac
    "${main:-$folder}/bin/python" scripts/cpp_tests.py build "$of" relive_core > "$folder/.core.log" 2>&1 ||
      { tail -n 40 "$folder/.core.log" && exit 1; }
    export RELIVE_CORE_LIBRARY="$PWD/build/cpp-$of/librelive_core.a"
  fi
  case "$kind" in
    full) arguments+=(--editable .) ;;
    demo) arguments+=(--config-settings=build-dir=build/demo --editable .) ;;
    core) # of which the wheel of Python 3.12 serves all later versions
      wheels="build/wheels/$(printf '%s' "$relive" | sha256sum | cut -c 1-16)"
      case "$version" in 3.10 | 3.11) tag="cp${version/./}-cp${version/./}" ;; *) tag="cp312-abi3" ;; esac
      if ! compgen -G "$wheels/*-$tag-*.whl" > /dev/null; then
        "${pip[@]}" wheel "${arguments[@]}" --config-settings=build-dir="build/tests-$tag" --wheel-dir "$wheels" .
      fi
      arguments+=(--force-reinstall "$wheels"/*-"$tag"-*.whl)
      ;;
    portable) arguments+=(--force-reinstall --config-settings=build-dir=build/portable .) ;;
  esac
  beat "building relive" "${pip[@]}" install "${arguments[@]}"
  stamp relive "$relive"
fi
