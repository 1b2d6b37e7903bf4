# SPDX-License-Identifier: Apache-2.0
# Every fault of the mutation run still applies, exactly once: code that moves takes its entries
# along.
. "$(dirname "$0")/common.sh"
command -v python3 >/dev/null 2>&1 || { echo "skipped: python3 was not found"; exit 77; }
complaints=$(python3 -B tests/mutation/mutate.py --check) || wrong "$complaints"
finish "planted faults: $complaints"
