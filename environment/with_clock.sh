# shellcheck shell=bash
# Sourced by install.sh and build_horovod.sh.

# Run a command and, every 20 s, say for how long it has run and the last line of the log, where its output goes.
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
            printf '    %3d s  %s\n' "$shown" "$(tail -n 1 "$log" | tr -d '\r' | sed 's/^ *//' | cut -c1-90)"
        fi
    done
    wait "$running" || status=$?
    running=
    return "$status"
}

# End what with_clock runs.
stop_running() { [ -z "${running:-}" ] || kill -- "-$running" 2>/dev/null || true; }
