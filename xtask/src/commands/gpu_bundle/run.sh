#!/usr/bin/env bash
# Runs what lies beside this script on a machine with an NVIDIA GPU; neither Rust nor a network is needed.
#
#   ./run.sh tests            every test binary, at most 8 minutes in all; those about NCCL skip themselves where it is too old
#   ./run.sh bench [OPTION]   symmem bench --provider vmm, with these options
#   ./run.sh tune [OPTION]    symmem tune --device, with these options; --dry-run keeps nothing
#   ./run.sh all [OPTION]     tests and bench
#   ./run.sh compare N [OPTION]   the same bench by the old program, the old one again and the new one, N times in turns, into
#                             the folder compare; `cargo xtask compare --judge compare` says what differs (--rounds 1 is enough)
#   ./run.sh python           the Python package's tests on devices, and its times beside torch's: one JSON line each
#   ./run.sh eager [OPTION]   those times alone, with these options
#
# PYTHON (python3) is the interpreter, which should have torch and numpy.
# An MPS server is started and ended, unless CUDA_MPS_PIPE_DIRECTORY says that one runs. NO_MPS=1 does without.
# TEST_THREADS (1) is how many tests of a binary run at a time, LIMIT (480) the seconds for all tests together.
# A test binary of the list NO_MPS_TESTS runs before the server starts.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 1
here=$PWD
export SYMMEM_CACHE_DIR=${SYMMEM_CACHE_DIR:-$here/cache}
export SYMMEM_ALLOW_OVERLAPPING_DEVICES=${SYMMEM_ALLOW_OVERLAPPING_DEVICES:-1}
# Where a compiler for kernels may lie, if the CUDA toolkit is not installed.
PYTHON=${PYTHON:-python3}
export SYMMEM_PYTHON=${SYMMEM_PYTHON:-$PYTHON}
if [ -z "${VIRTUAL_ENV:-}" ] && command -v "$PYTHON" > /dev/null; then
    VIRTUAL_ENV=$("$PYTHON" -c 'import sys; print(sys.prefix)')
    export VIRTUAL_ENV
fi
NO_MPS_TESTS=" @NO_MPS_TESTS@ "
mkdir -p "$SYMMEM_CACHE_DIR"

mps_folder=
start_mps() {
    if [ "${NO_MPS:-}" = 1 ] || [ -n "${CUDA_MPS_PIPE_DIRECTORY:-}" ]; then return; fi
    if ! command -v nvidia-cuda-mps-control > /dev/null; then
        echo "there is no nvidia-cuda-mps-control: ranks of one GPU take turns" >&2
        return
    fi
    mps_folder=$(mktemp -d /tmp/mps.XXXXXX)
    mkdir "$mps_folder/pipe" "$mps_folder/log"
    export CUDA_MPS_PIPE_DIRECTORY=$mps_folder/pipe CUDA_MPS_LOG_DIRECTORY=$mps_folder/log
    if ! timeout 20 nvidia-cuda-mps-control -d; then
        echo "the MPS server does not start: ranks of one GPU take turns" >&2
        rm -rf "$mps_folder"
        unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
        mps_folder=
    fi
}

stop_mps() {
    if [ -z "$mps_folder" ]; then return; fi
    echo quit | timeout 20 nvidia-cuda-mps-control > /dev/null 2>&1
    rm -rf "$mps_folder"
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
    mps_folder=
}
trap stop_mps EXIT

failed=()
end=$((SECONDS + ${LIMIT:-480}))
run_test() {
    local name=$1 left=$((end - SECONDS)) start=$SECONDS
    if [ "$left" -le 0 ]; then
        failed+=("$name (no time was left)")
        return
    fi
    echo "==> $name"
    # The fake libraries, which some tests are about, are no part of the bundle.
    timeout --kill-after=5 "$left" "tests/$name" --test-threads="${TEST_THREADS:-1}" --nocapture \
        --skip on_fakes < /dev/null
    local code=$?
    echo "==> $name: exit $code after $((SECONDS - start)) s"
    if [ "$code" -ne 0 ]; then failed+=("$name (exit $code)"); fi
}

tests() {
    local path name
    for path in tests/*; do
        name=${path##*/}
        if [[ $NO_MPS_TESTS == *" $name "* ]]; then run_test "$name"; fi
    done
    start_mps
    for path in tests/*; do
        name=${path##*/}
        if [[ $NO_MPS_TESTS != *" $name "* ]]; then run_test "$name"; fi
    done
    stop_mps
    if [ ${#failed[@]} -gt 0 ]; then
        printf 'FAILED: %s\n' "${failed[@]}"
        return 1
    fi
    echo "all test binaries passed"
}

bench() {
    # It starts a server of its own.
    ./symmem bench --provider vmm "$@"
}

# As the bench.
tune() {
    ./symmem tune --device "$@"
}

# Whoever comes second finds a warmer machine, so that changes with every turn.
compare() {
    local turns=${1:-} turn at build
    local builds=(old again new)
    shift
    if [[ ! $turns =~ ^[0-9]+$ ]]; then
        echo "compare needs a number of turns" >&2
        return 2
    fi
    if [ ! -x symmem-old ]; then
        echo "there is no old program here: make the bundle with cargo xtask gpu-bundle --old REV" >&2
        return 2
    fi
    mkdir -p compare
    for ((turn = 1; turn <= 10#$turns; turn++)); do
        for at in 0 1 2; do
            build=${builds[(at + turn - 1) % 3]}
            local program=./symmem-old
            if [ "$build" = new ]; then program=./symmem; fi
            echo "==> turn $turn of $turns: $build"
            "$program" bench --provider vmm --json "compare/$(printf %03d "$turn")-$build.json" "$@" || return 1
        done
    done
    echo "the results are in $here/compare"
}

run_python() {
    local name=$1 left=$((end - SECONDS)) start=$SECONDS
    shift
    if [ "$left" -le 0 ]; then
        failed+=("$name (no time was left)")
        return
    fi
    echo "==> $name"
    PYTHONPATH=$here/python${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 \
        timeout --kill-after=15 "$left" "$PYTHON" "python-tests/$name" "$@" < /dev/null
    local code=$?
    echo "==> $name: exit $code after $((SECONDS - start)) s"
    if [ "$code" -ne 0 ]; then failed+=("$name (exit $code)"); fi
}

# Those of the fake driver have nothing to do here.
python_tests() {
    local path name
    for path in python-tests/test_*.py; do
        name=${path##*/}
        if [[ $name != test_fake_* ]]; then run_python "$name"; fi
    done
}

tell_python() {
    if [ ${#failed[@]} -gt 0 ]; then
        printf 'FAILED: %s\n' "${failed[@]}"
        return 1
    fi
    echo "all Python scripts ended well"
}

command=${1:-}
shift
case $command in
    tests) tests ;;
    bench) bench "$@" ;;
    tune) tune "$@" ;;
    compare) compare "$@" ;;
    all)
        tests
        code=$?
        bench "$@" && exit $code
        ;;
    python)
        start_mps
        python_tests
        run_python eager.py
        stop_mps
        tell_python
        ;;
    eager)
        start_mps
        run_python eager.py "$@"
        stop_mps
        tell_python
        ;;
    *)
        sed -n '2,18s/^# \{0,1\}//p' "${BASH_SOURCE[0]##*/}"
        exit 2
        ;;
esac
