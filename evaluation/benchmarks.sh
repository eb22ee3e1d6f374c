# Sourced by evaluate_*.sh: runs each benchmark on its own, and tells at the end what did not run and why.
evaluation=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=text2grad/journal/launching.sh
. "$evaluation/../text2grad/journal/launching.sh"
python() { launch command python "$@"; }  # signals reach it, and it is not left behind
only='' skip='' status=0 not_run=() results=()

# check_names NAME ...: every name in --only and --skip is a benchmark of this script.
check_names() {
    local name
    for name in $only $skip; do
        [[ " $* " == *" $name "* ]] || { echo "error: there is no benchmark $name; choose of: $*" >&2; exit 2; }
    done
}

# chosen NAME: neither --only nor --skip leaves it out.
chosen() {
    [[ -z $only || " $only " == *" $1 "* ]] && [[ " $skip " != *" $1 "* ]]
}

# benchmark NAME ASKED MODULES RESULT COMMAND ...: runs the command, unless a package is missing or the choice excludes it.
# ASKED is yes where the user named the benchmark's data; then (and with --only) a missing package is a failure.
benchmark() {
    local name=$1 asked=$2 modules=$3 result=$4 code=0 why
    shift 4
    chosen "$name" || return 0
    # shellcheck disable=SC2086
    if [ -n "$modules" ] && ! why=$(python "$evaluation/optional_packages.py" $modules); then
        not_run+=("$name: $why")
        if [ "$asked" = yes ] || [ -n "$only" ]; then status=2; fi
        return 0
    fi
    "$@" || code=$?
    case $code in 129 | 130 | 138 | 143) exit "$code" ;; esac  # a signal ends all of it
    if [ "$code" -eq 0 ]; then results+=("$result"); else not_run+=("$name: failed, see its message above"); status=$code; fi
}

# summarise: where the results are, what did not run, and the next command; exits with the status of the whole.
summarise() {
    echo
    [ ${#results[@]} -eq 0 ] || printf 'result: %s\n' "${results[@]}"
    [ ${#not_run[@]} -eq 0 ] || printf 'did not run: %s\n' "${not_run[@]}"
    [ ${#results[@]} -eq 0 ] || echo "next: python evaluation/report.py --results ${results[*]} --output_path report.html"
    exit "$status"
}
