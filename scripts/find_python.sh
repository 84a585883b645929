#!/usr/bin/env bash
# Prints the path of a Python of the asked version that can make virtual environments and compile extensions.
# usage: scripts/find_python.sh 3.11
# Candidates are run, not trusted: a pyenv shim exists for versions it then refuses to start.
set -u
version="${1:?usage: find_python.sh MAJOR.MINOR}"

candidates() {
  [ -n "${PYTHON:-}" ] && command -v "$PYTHON"
  type -ap "python$version"
  local root
  for root in "${PYENV_ROOT:-}" "$(pyenv root 2>/dev/null)" "$HOME/.pyenv"; do
    [ -n "$root" ] && printf '%s\n' "$root/versions/$version".*/bin/python "$root/versions/$version"/bin/python
  done
  printf '%s\n' "/opt/python/cp${version/./}-cp${version/./}/bin/python" "/opt/python$version/bin/python$version" \
    "/usr/local/bin/python$version"
  command -v uv >/dev/null 2>&1 && uv python find --no-project "$version" 2>/dev/null
  type -ap python3
}

# Prints the part that the candidate lacks, or nothing. The interpreter itself answers.
read -r -d '' question <<'PY'
import importlib.util, os, sys, sysconfig
if "%d.%d" % sys.version_info[:2] != sys.argv[1]:
    sys.exit("is Python %d.%d" % sys.version_info[:2])
for module in ("venv", "ensurepip"):
    if importlib.util.find_spec(module) is None:
        sys.exit("has no module %s (on Debian: the package python%s-venv)" % (module, sys.argv[1]))
header = os.path.join(sysconfig.get_path("include"), "Python.h")
if not os.path.exists(header):
    sys.exit("has no %s (on Debian: the package python%s-dev)" % (header, sys.argv[1]))
print(os.path.realpath(sys.executable) if "shims" in sys.argv[2] else sys.executable)
PY

reasons=""
seen=":"
while IFS= read -r candidate; do
  [ -x "$candidate" ] || continue
  case "$seen" in *":$candidate:"*) continue ;; esac
  seen="$seen$candidate:"
  if answer="$("$candidate" -c "$question" "$version" "$candidate" 2>&1)"; then
    printf '%s\n' "$answer"
    exit 0
  fi
  reasons="$reasons  $candidate: $(printf '%s' "$answer" | grep -v '^$' | head -n 1)"$'\n'
done < <(candidates)

{
  printf 'Python %s: no usable interpreter found.\n' "$version"
  [ -n "$reasons" ] && printf '%s' "$reasons"
} >&2
exit 1
