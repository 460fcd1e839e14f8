# The stages of `./dev test`; sourced by it. Each stage is counted as one, and the tests inside by their own summaries.
# shellcheck shell=sh

# `vm` comes last and alone: two guests fill two processors.
STAGES="fmt clippy unit api lab node conformance nodes workloads network cluster streams apps restart faults crash bad-input vm"
# Suites with a lab of their own spend half their time waiting, so several run at once: the longest first. The others need the machine for themselves.
SUITES="crash api workloads conformance streams faults restart nodes node apps cluster network bad-input"
LANES=${KEELSON_TEST_LANES:-2}

# Runs one stage and keeps what it printed, and for the summary: its status, tests passed, failed and skipped, seconds.
stage() {
    begun=$(date +%s)
    echo "=== $1"
    status=0
    { "run_$(echo "$1" | tr - _)" 2>&1 || echo "stage $1 failed" >"$work/$1.failed"; } | tee "$work/$1.output"
    [ -e "$work/$1.failed" ] && status=1
    # cargo and our suites end with the same line: test result: ok. 5 passed; 0 failed; 1 ignored; …
    counts=$(sed -n 's/^test result: .* \([0-9]*\) passed; \([0-9]*\) failed; \([0-9]*\) ignored.*/\1 \2 \3/p' "$work/$1.output" |
        awk '{ p += $1; f += $2; i += $3 } END { print p + 0, f + 0, i + 0 }')
    skips=$(grep -c '^SKIPPED ' "$work/$1.output" || true)
    # shellcheck disable=SC2086
    set -- "$1" $counts
    passed=$2 failed=$3
    # A stage without tests (fmt, clippy), or one that did not get to them.
    if [ $(($2 + $3)) -eq 0 ] || { [ $status -ne 0 ] && [ "$3" -eq 0 ]; }; then
        [ $status -eq 0 ] && passed=$((passed + 1)) || failed=$((failed + 1))
    fi
    echo "$status $passed $failed $(($4 + skips)) $(($(date +%s) - begun))" >"$work/$1.result"
}

# Takes the next suite from the queue, runs it, and prints what it said in one piece, until there is none.
lane() {
    while name=$(flock "$work/queue.lock" sh -c 'head -n 1 "$1"; sed -i 1d "$1"' - "$work/queue") && [ -n "$name" ]; do
        stage "$name" >"$work/$name.whole" 2>&1
        flock "$work/print.lock" cat "$work/$name.whole"
    done
}

# Ends a process and all below it, these first: a suite takes its lab down then.
end_tree() {
    for below in $(pgrep -P "$1"); do
        end_tree "$below"
    done
    kill "$1" 2>/dev/null || true
}

# The disks of virtual machines, beside the lanes. What goes wrong is told by the suite, which makes them itself then.
make_boxes() {
    vm_packages >/dev/null 2>&1 && "$target/debug/lab" vm box >/dev/null 2>&1 || true
}

# Runs suites several at once. Their tests wait longer then: a processor may be the other lane's.
lanes() {
    printf '%s\n' "$@" >"$work/queue"
    [ -e "$work/built" ] || { build "" && : >"$work/built"; } || return 0
    echo "=== $LANES lanes: $*"
    lane_pids=
    # Without job control what runs in the background does not hear of Ctrl-C.
    trap 'for pid in $lane_pids; do end_tree "$pid"; done; exit 130' INT TERM
    for _ in $(seq "$LANES"); do
        KEELSON_TEST_PATIENCE="${KEELSON_TEST_PATIENCE:-2}" lane &
        lane_pids="$lane_pids $!"
    done
    if [ -n "$with_boxes" ]; then
        make_boxes &
        lane_pids="$lane_pids $!"
    fi
    # shellcheck disable=SC2086
    wait $lane_pids || true
    trap - INT TERM
}

run_fmt() { cargo fmt --all --check; }
# The suites are no part of "all targets": they run by name only.
run_clippy() {
    cargo clippy --locked --quiet --workspace --all-targets -- -D warnings && cargo clippy --locked --quiet --workspace --test '*' -- -D warnings
}
# Always the whole workspace: with a part of it, cargo would choose other features and build the dependencies again.
run_unit() {
    get_etcd
    cargo test --locked --quiet --workspace --lib --bins --tests
}
# Several control planes, etcd, and kubectl at work with the program.
run_api() {
    get_etcd
    cargo test --locked --quiet --workspace --test etcd --test kubectl --test leader --test leaders --test noise
}
get_etcd() {
    # Unpacked, not installed: the package would start an etcd of this machine.
    fetch_package etcd-server "$target/lab/.etcd"
    export KEELSON_ETCD="${KEELSON_ETCD:-$target/lab/.etcd/usr/bin/etcd}"
}

run_suite() {
    [ -e "$work/built" ] || { build "" && : >"$work/built"; } || return 1
    cargo test --locked --quiet --workspace --test "$1"
}
run_lab() { run_suite lab; }
run_node() { run_suite node; }
run_conformance() { run_suite conformance; }
run_nodes() { run_suite nodes; }
run_network() { run_suite network; }
run_cluster() { run_suite cluster; }
run_streams() {
    get_clients
    run_suite streams
}
run_apps() { run_suite apps; }
run_workloads() {
    # Unpacked, not installed: the package would start a registry of this machine.
    fetch_package docker-registry "$target/lab/.docker-registry"
    run_suite workloads
}
run_restart() { run_suite restart; }
run_faults() { run_suite faults; }
run_crash() { run_suite crash_safety; }
run_bad_input() { run_suite bad_input; }
run_vm() {
    # Without them the suite says by name that it is skipped.
    vm_packages || true
    [ -z "${KEELSON_TEST_FULL:-}" ] || test_programs
    KEELSON_TEST_LIMIT=${KEELSON_TEST_LIMIT:-600} run_suite vm
}

# Test programs of the dataplane that the suite `vm` runs on other kernels, as cargo tells where it has built them.
test_programs() {
    KEELSON_TEST_PROGRAMS=$(cargo test --locked --quiet --workspace --tests --no-run --message-format=json |
        sed -n 's#.*"src_path":"[^"]*/dataplane/tests/\(packets\|affinity\|sctp\|race\|listing\|walk\|kernel_faults\|endurance\)\.rs".*"executable":"\([^"]*\)".*#\1=\2#p')
    export KEELSON_TEST_PROGRAMS
}

# Unpacks a package of the distribution into a folder, unless it is there. The suites skip what is not.
fetch_package() {
    [ "${install:-yes}" = yes ] && [ ! -d "$2/usr" ] && mkdir -p "$2" || return 0
    # A new machine may have no lists of packages yet, or old ones.
    (cd "$2" && { apt-get download -q "$1" || { apt-get update -q && apt-get download -q "$1"; }; } >/dev/null 2>&1 && dpkg -x ./*.deb . && rm -f ./*.deb) || true
}

# Other clients of streams, beside the labs: Debian's old kubectl (SPDY only) and the Python client. The suite skips what is not there.
get_clients() {
    [ "${install:-yes}" = yes ] || return 0
    # Unpacked, not installed: a kubectl of the system stays what it is.
    fetch_package kubernetes-client "$target/lab/.kubectl-1.20"
    python=$target/lab/.python-client
    [ -d "$python/kubernetes" ] || python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore \
        --target "$python" kubernetes >/dev/null 2>&1 || rm -rf "$python"
}

# Whether $1 is among the words of $2.
among() {
    case " $2 " in
    *" $1 "*) return 0 ;;
    esac
    return 1
}

run_tests() {
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    [ $# -gt 0 ] || set -- $STAGES
    together=
    for name in "$@"; do
        among "$name" "$STAGES" || die "there is no test '$name'; there are: $STAGES"
    done
    for name in $SUITES; do
        among "$name" "$*" && together="$together $name"
    done
    # One alone is seen while it runs; guests are too slow for two.
    { [ "$LANES" -gt 1 ] && [ "$(echo "$together" | wc -w)" -gt 1 ] && [ -z "${KEELSON_TEST_GUESTS:-}" ]; } || together=
    with_boxes=
    among vm "$*" && with_boxes=yes
    for name in "$@"; do
        among "$name" "$together vm" || stage "$name"
    done
    # shellcheck disable=SC2086
    [ -z "$together" ] || lanes $together
    [ -z "$with_boxes" ] || stage vm
    passed=0 failed=0 skipped=0 broken=''
    echo
    for name in "$@"; do
        # A suite that was not even begun, because nothing could be built.
        [ -e "$work/$name.result" ] || echo "1 0 1 0 0" >"$work/$name.result"
        read -r status p f s seconds <"$work/$name.result"
        passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
        [ "$status" -eq 0 ] || broken="$broken $name"
        printf '  %-11s %-7s %4d s\n' "$name" "$([ "$status" -eq 0 ] && echo ok || echo FAILED)" "$seconds"
    done
    echo
    [ -z "$broken" ] || echo "failed:$broken"
    echo "$passed passed, $failed failed, $skipped skipped"
    [ -z "$broken" ] && [ "$failed" -eq 0 ]
}
