#!/usr/bin/env bash
# run.sh BUILD_FOLDER COMPILER GENERATOR C_COMPILER: installs into a scratch folder, builds consumer/, c_consumer/ and a
# copy of the example against it, runs them under the installed ddprun, runs ddp-bench, and looks at what the library
# shows and needs, and at each header.
set -eu
build=$1 compiler=$2 generator=$3 c_compiler=$4
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

cmake --install "$build" --prefix "$scratch/prefix" >/dev/null
cp -r "$scratch/prefix/share/ddprun/examples/train_breast_cancer" "$scratch/example"
cp -r "$here/c_consumer" "$scratch/c_consumer"  # its source is the program in the document
# shellcheck disable=SC2016  # these backticks begin and end code in Markdown
sed -n '/^```c$/,/^```$/ { /^```/ !p }' "$here/../../docs/c_interface.md" >"$scratch/c_consumer/c_lines.c"
for source in "$here/consumer" "$scratch/c_consumer" "$scratch/example"; do
  build="$scratch/build/$(basename "$source")"
  cmake -G "$generator" -S "$source" -B "$build" -DCMAKE_PREFIX_PATH="$scratch/prefix" \
    -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_C_COMPILER="$c_compiler" >"$scratch/log" 2>&1 ||
    { cat "$scratch/log"; exit 1; }
  cmake --build "$build" >"$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
done

grep -q -- 'rdzv.-endpoint' "$scratch/prefix/share/man/man1/ddprun.1" || { echo "no man page"; exit 1; }
for program in "$scratch"/prefix/bin/*; do
  page=$scratch/prefix/share/man/man1/$(basename "$program").1
  [ -s "$page" ] || { echo "$(basename "$program") has no man page"; exit 1; }
  grep -qF '\-\-version' "$page" || { echo "$page does not list the options"; exit 1; }
done

# One version, whoever is asked.
version=$("$here/../../.ci/version")
is_version() { [ "$2" = "$version" ] || { echo "$1 says version '$2' in place of $version"; exit 1; }; }
for program in ddprun ddp-rendezvous ddp-bench; do
  is_version "$program --version" "$("$scratch/prefix/bin/$program" --version | sed "s/^$program //")"
done
if command -v pkg-config >/dev/null; then
  # The tree may have been moved: pkg-config finds it from the place of the file.
  PKG_CONFIG_PATH=$(dirname "$(find "$scratch/prefix" -name ddp.pc)")
  export PKG_CONFIG_PATH
  is_version "pkg-config ddp" "$(pkg-config --modversion ddp)"
  # shellcheck disable=SC2046  # several words
  "$c_compiler" -std=c11 "$here/pkg_config_consumer/version.c" -o "$scratch/version" $(pkg-config --cflags --libs ddp)
  is_version "a C program of pkg-config" "$(LD_LIBRARY_PATH=$(pkg-config --variable=libdir ddp) "$scratch/version")"
else
  echo "skipped: a C program by pkg-config, because pkg-config is not installed"
fi
for program in consumer/ten_lines c_consumer/c_lines; do
  out=$("$scratch/prefix/bin/ddprun" --standalone --nproc-per-node=3 "$scratch/build/$program")
  [ "$out" = "3 ranks, sum 6" ] || { echo "unexpected output of $program: $out"; exit 1; }
done

out=$("$scratch/prefix/bin/ddprun" --standalone --nproc-per-node=2 "$scratch/build/example/train_breast_cancer" \
  --epochs 1 --data "$here/../../examples/data/breast_cancer.csv" --checkpoint-dir "$scratch/checkpoints")
echo "$out" | grep -q '^test accuracy ' || { echo "unexpected output: $out"; exit 1; }

out=$("$scratch/prefix/bin/ddp-bench" --ranks=2 --parameters=10k --steps=2 --svg "$scratch/speedup.svg")
echo "$out" | grep -q '^ *2  *[0-9]' || { echo "unexpected output: $out"; exit 1; }
[ -s "$scratch/speedup.svg" ] || { echo "ddp-bench drew nothing"; exit 1; }

# Only the public interface may be visible: anything else could clash with a program's own libraries.
library=$(echo "$scratch"/prefix/lib*/libddp.so "$scratch"/prefix/lib/*/libddp.so | tr ' ' '\n' | grep -v '\*' |
  head -n 1)
own='^((typeinfo|vtable|typeinfo name|VTT) for )?ddp::v[0-9]+_[0-9]+::|^ddp_[a-z_]+$'
own+='|^(__odr_asan|_edata|_end|__bss_start|_init|_fini)'
foreign=$(nm -DC --defined-only "$library" | awk '$2 !~ /^[VvWuw]$/' | cut -d' ' -f3- | grep -vE "$own" || true)
[ -z "$foreign" ] || { printf 'symbols that should be hidden:\n%s\n' "$foreign"; exit 1; }

# Of C names those that ddp/ddp.h declares, and all of them.
declared=$(grep -oE '\bddp_[a-z_]+\(' "$scratch/prefix/include/ddp/ddp.h" | tr -d '(' | sort -u)
shown=$(nm -D --defined-only "$library" | awk '$3 ~ /^ddp_/ {print $3}' | sort)
diff <(echo "$declared") <(echo "$shown") || { echo "declared in ddp.h only (<), or shown only (>)"; exit 1; }

# A program must not start with the library of another minor version.
soname=$(readelf -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\].*/\1/p')
abi=$(sed -n 's/^#define DDP_ABI v//p' "$scratch/prefix/include/ddp/export.hpp")
[ "$soname" = "libddp.so.${abi/_/.}" ] || { echo "the library is $soname, its headers are of $abi"; exit 1; }
readelf -d "$scratch/build/consumer/ten_lines" | grep -q "NEEDED.*\[$soname\]" || { echo "no need of $soname"; exit 1; }
nm -DC "$scratch/build/consumer/ten_lines" | grep -q "U ddp::v$abi::init_process_group" ||
  { echo "the program's symbols do not say which version they are of"; exit 1; }

# Boost's own marks make its errors visible unless the linker hides them: they are weak, and would clash unseen.
boost=$(nm -DC "$library" | grep 'boost::' || true)
[ -z "$boost" ] || { printf "symbols of Boost:\n%s\n" "$boost"; exit 1; }

# Where there is no GPU, and no Boost, the library must load all the same.
needed=$(readelf -d "$library" | grep -E 'NEEDED.*lib(cuda|nccl|nvidia|boost)' || true)
[ -z "$needed" ] || { printf 'libraries that a machine may lack:\n%s\n' "$needed"; exit 1; }

for header in "$scratch"/prefix/include/ddp/*.hpp; do
  [ "$(basename "$header")" != torch.hpp ] || continue  # needs libtorch: tests/interop/libtorch_test.cpp
  echo "#include <ddp/$(basename "$header")>" | "$compiler" -std=c++17 -Wall -Wextra -Wpedantic -Werror -fsyntax-only \
    -I"$scratch/prefix/include" -x c++ - || { echo "$(basename "$header") does not compile alone as C++17"; exit 1; }
done
echo '#include <ddp/ddp.h>' | "$c_compiler" -std=c11 -Wall -Wextra -Wpedantic -Werror -fsyntax-only \
  -I"$scratch/prefix/include" -x c - || { echo "ddp.h does not compile alone as C11"; exit 1; }
echo '#include <ddp/ddp.h>' | "$compiler" -std=c++17 -Wall -Wextra -Wpedantic -Werror -fsyntax-only \
  -I"$scratch/prefix/include" -x c++ - || { echo "ddp.h does not compile alone as C++17"; exit 1; }
