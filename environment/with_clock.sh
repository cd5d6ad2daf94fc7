# shellcheck shell=bash
# Sourced by install.sh and build_horovod.sh.

# Print what pip or CMake, whose output is in a log, did last.
last_step() {
    grep -aoE '(Building|Linking|Building wheel|Collecting|Downloading|Using cached|Installing|Running) [^(]*' "$1" |
        tail -n 1 | sed -E 's|[^ ]*/||g' | cut -c1-80
}

# Run a command whose output goes to a log; say every 20 s for how long it has run, and what it did last.
# usage: with_clock LOG COMMAND...
with_clock() {
    local log=$1 begin=$SECONDS shown=0 status=0
    shift
    # A process group of its own, so that an interrupt ends what it started, too.
    set -m
    "$@" >>"$log" 2>&1 &
    running=$!
    set +m
    while kill -0 "$running" 2>/dev/null; do
        sleep 0.2
        if [ $((SECONDS - begin - shown)) -ge 20 ]; then
            shown=$((SECONDS - begin))
            printf '    %3d s  %s\n' "$shown" "$(last_step "$log")"
        fi
    done
    wait "$running" || status=$?
    running=
    return "$status"
}

# End what with_clock runs.
stop_running() { [ -z "${running:-}" ] || kill -- "-$running" 2>/dev/null || true; }
