#!/usr/bin/env bash
# Builds Triton's own onnxruntime backend (C++, CPU) for the Triton that `make peers` installs, for `bench.realistic`.
#
#   scripts/build_triton_onnxruntime.sh [DIRECTORY]        (default .venv-peers/triton-backends)
#
# A `pip install` brings Triton with its python backend alone; its native backends come with its container. This one is
# compiled from the sources of the same release against the onnxruntime of our own environment, so that both servers run
# the same kernels. Needs git, curl, g++ and Debian's rapidjson-dev. SOURCES may name a mirror of github.com, HEADER a
# copy of onnxruntime_c_api.h.
set -euo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
out=${1:-$here/.venv-peers/triton-backends}/onnxruntime
SOURCES=${SOURCES:-https://github.com}
TRITON=r24.10      # Triton 2.51.0
HEADERS=v1.19.2    # onnxruntime's C API of that time
PYTHON=${PYTHON:-$here/.venv/bin/python}

[ -f /usr/include/rapidjson/document.h ] || { echo "install rapidjson-dev first" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for name in onnxruntime_backend backend core common; do
    git clone -q --depth 1 --branch "$TRITON" "$SOURCES/triton-inference-server/$name" "$work/$name"
done
if [ -n "${HEADER:-}" ]; then
    cp "$HEADER" "$work/onnxruntime_c_api.h"
else
    curl -fsSL -o "$work/onnxruntime_c_api.h" \
        "https://raw.githubusercontent.com/microsoft/onnxruntime/$HEADERS/include/onnxruntime/core/session/onnxruntime_c_api.h"
fi

mkdir -p "$out"
# The library inside the wheel, under the name that the backend asks for.
library=$(echo "$("$PYTHON" -c 'import os, onnxruntime; print(os.path.dirname(onnxruntime.__file__))')"/capi/libonnxruntime.so.*)
cp "$library" "$out/"
ln -sf "$(basename "$library")" "$out/libonnxruntime.so.1"
ln -sf libonnxruntime.so.1 "$out/libonnxruntime.so"

flags=(-std=c++17 -O3 -DNDEBUG -fPIC -w -DTRITON_ENABLE_STATS=1
    -I"$work/onnxruntime_backend/src" -I"$work/backend/include" -I"$work/backend/src"
    -I"$work/core/include" -I"$work/common/include" -I"$work")
objects=()
for source in "$work"/onnxruntime_backend/src/onnxruntime{,_loader,_utils}.cc \
    "$work"/backend/src/backend_{common,input_collector,memory,model,model_instance,output_responder}.cc \
    "$work"/common/src/{async_work_queue,error,thread_pool}.cc; do
    echo "compiling $(basename "$source")"
    object=$work/$(basename "$source" .cc).o
    g++ "${flags[@]}" -c "$source" -o "$object"
    objects+=("$object")
done
# The server, in whose process it is loaded, has the functions that stay undefined.
g++ -shared -O3 -o "$out/libtriton_onnxruntime.so" "${objects[@]}" \
    -Wl,--version-script="$work/onnxruntime_backend/src/libtriton_onnxruntime.ldscript" \
    -Wl,-soname,libtriton_onnxruntime.so -Wl,-rpath,'$ORIGIN' -L"$out" -l:libonnxruntime.so.1 -ldl -lpthread
echo "built $out/libtriton_onnxruntime.so"
