# Sourced by launchers. `launch COMMAND...` runs it and passes SIGTERM, SIGUSR1, SIGHUP and Ctrl-C on to the processes that
# do the work. It waits until they have saved what they must, and leaves none behind. Its status is the command's, or
# 128 + n after signal n. Programs between (torchrun, deepspeed) get no signal: they do not wait long enough, or do not
# pass it on.
launch() {
    local child code=0 number=0 workers
    TEXT2GRAD_WORKERS=$(mktemp -d)
    export TEXT2GRAD_WORKERS
    set -m # a group of its own: Ctrl-C reaches this script alone, which passes it on once
    "$@" </dev/null &
    child=$!
    set +m
    trap 'number=15; _pass_on TERM "$child"' TERM
    trap 'number=1; _pass_on TERM "$child"' HUP
    trap 'number=10; _pass_on USR1 "$child"' USR1
    trap 'number=2; _pass_on INT "$child"' INT
    while wait "$child"; code=$?; kill -0 "$child" 2>/dev/null; do :; done
    trap - TERM HUP USR1 INT
    for _ in {1..100}; do # a torchrun that was killed leaves them behind
        workers=$(_workers)
        [ -n "$workers" ] || break
        # shellcheck disable=SC2086
        kill -KILL $workers 2>/dev/null || true
        sleep 0.1
    done
    [ "$code" -lt 128 ] || kill -KILL -- "-$child" 2>/dev/null || true
    rm -rf "$TEXT2GRAD_WORKERS"
    unset TEXT2GRAD_WORKERS
    [ "$number" -eq 0 ] || return $((128 + number))
    return "$code"
}

# The processes that registered (text2grad/errors.py) and live; a number that another process has by now is none.
_workers() {
    local mark stat
    for mark in "$TEXT2GRAD_WORKERS"/*; do
        read -r stat 2>/dev/null <"/proc/${mark##*/}/stat" || continue
        # shellcheck disable=SC2086
        set -- ${stat##*) } # its state, …, as the twentieth its start
        if [ "$1" != Z ] && [ "${20}" = "$(<"$mark")" ]; then echo "${mark##*/}"; fi
    done
}

_pass_on() { # SIGNAL CHILD
    local workers
    workers=$(_workers)
    if [ -n "$workers" ]; then
        # shellcheck disable=SC2086
        kill -"$1" $workers 2>/dev/null || true
    else # nothing has begun yet
        kill -TERM -- "-$2" 2>/dev/null || true
    fi
}
