#!/usr/bin/env bash
# wheel.sh BUILD_FOLDER PYTHON: makes the wheel of what is built, looks at it, installs it in a fresh environment, runs
# two ranks and elastic_launch() there, upgrades it, and takes it away again.
set -eu
build=$1 python=$2
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { printf 'error: %s\n' "$@"; exit 1; }
if ! "$python" -c 'import scikit_build_core, auditwheel, wheel' 2>/dev/null; then
  echo "Skipped"
  echo "$python has no scikit-build-core, auditwheel and wheel; \`./test.sh --interop\` installs them"
  exit 77
fi

"$python" -m pip --disable-pip-version-check wheel --quiet --no-deps --no-index --no-build-isolation \
  -w "$scratch/new" -C "cmake.define.DDP_PREBUILT=$build" "$here/../../python" >"$scratch/log" 2>&1 ||
  { cat "$scratch/log"; exit 1; }
version=$("$here/../../.ci/version")
wheel=$scratch/new/ddprun-$version-py3-none-manylinux_2_28_x86_64.whl
[ -f "$wheel" ] || fail "another wheel was made: $(ls "$scratch/new")"
"$python" -m auditwheel show "$wheel" >"$scratch/audit" 2>&1 || { cat "$scratch/audit"; exit 1; }
tr '\n' ' ' <"$scratch/audit" | grep -q 'following platform tag: "manylinux_2_28_x86_64"' ||
  { cat "$scratch/audit"; fail "auditwheel does not agree with the tag of the wheel"; }

# The same wheel as an older version, with a module that the new one lacks.
"$python" -m wheel unpack --dest "$scratch/old" "$wheel" >"$scratch/log"
old=$scratch/old/ddprun-0.0.9
mv "$scratch/old/ddprun-$version" "$old"
mv "$old/ddprun-$version.dist-info" "$old/ddprun-0.0.9.dist-info"
mv "$old/ddprun-$version.data" "$old/ddprun-0.0.9.data"
sed -i "s/^Version: $version$/Version: 0.0.9/" "$old/ddprun-0.0.9.dist-info/METADATA"
touch "$old/ddprun/of_the_old_version.py"
"$python" -m wheel pack --dest "$scratch/old" "$old" >"$scratch/log"

"$python" -m venv "$scratch/venv"
files() { (cd "$scratch/venv" && find . -type f -not -path '*/__pycache__/*' | sort); }
pip() { "$scratch/venv/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }
files >"$scratch/before"
pip install --no-index "$scratch/old/"ddprun-0.0.9-*.whl
[ -n "$(find "$scratch/venv" -name of_the_old_version.py)" ] || fail "the old version is not installed"
pip install --no-index --upgrade "$wheel"
[ -z "$(find "$scratch/venv" -name of_the_old_version.py)" ] || fail "the upgrade left a module of the old version"

export PATH=$scratch/venv/bin:$PATH
unset PYTHONPATH DDP_LIBRARY
for file in bin/ddprun bin/ddp-rendezvous share/man/man1/ddprun.1 share/man/man1/ddp-rendezvous.1 \
  share/bash-completion/completions/ddprun \
  share/zsh/site-functions/_ddprun share/fish/vendor_completions.d/ddprun.fish share/doc/ddprun/LICENSE; do
  [ -s "$scratch/venv/$file" ] || fail "the wheel lacks $file"
done
[ "$(ddprun --version)" = "ddprun $version" ] || fail "ddprun is of another version: $(ddprun --version)"
[ "$(ddprun --version)" = "$(python -m ddprun --version)" ] || fail "python -m ddprun is another program"
of_libddp=$(python -c 'import ctypes, pathlib, sys
from importlib.metadata import version; assert version("ddprun") == sys.argv[1], version("ddprun")
import ddprun; [library] = pathlib.Path(ddprun.__file__).parent.glob("libddp.so*")
function = ctypes.CDLL(str(library)).ddp_version; function.restype = ctypes.c_char_p; print(function().decode())
' "$version") || fail "the wheel has no version $version"
[ "$of_libddp" = "$version" ] || fail "the wheel is of version $version, its libddp of $of_libddp"
ddp-rendezvous --version >"$scratch/log" || fail "ddp-rendezvous does not run"
for group in torch.distributed.backends torch.backends; do  # where PyTorch looks for backends
  python -c 'import sys; from importlib.metadata import entry_points
[found] = entry_points(group=sys.argv[1]); assert (found.name, found.value) == ("ddp", "ddprun.c10d:register"), found
' "$group" || fail "the wheel has no entry point $group"
done

out=$(ddprun --standalone --nproc-per-node=2 "$here/wheel_train.py" | sort)
[ "$out" = "$(printf 'rank 0 of 2: sum 3\nrank 1 of 2: sum 3')" ] || fail "unexpected output: $out"
python "$here/wheel_launch.py" "$here/wheel_train.py" 2>"$scratch/log" ||
  { cat "$scratch/log"; fail "elastic_launch() does not do as it says"; }

pip uninstall --yes ddprun
files >"$scratch/after"
diff "$scratch/before" "$scratch/after" || fail "uninstalled, but not all of it"
