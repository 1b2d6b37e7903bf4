# SPDX-License-Identifier: Apache-2.0
# Tests of the Python package (the second argument) that need NumPy alone, by the interpreter that
# is the first argument, on the library that is the third.
for module in numpy pytest; do
  "$1" -c "import $module" 2>/dev/null || { echo "skipped: $1 has no $module"; exit 77; }
done
cd "$2" || exit 1
PYTHONPATH=$PWD exec "$1" -B -m pytest -p no:cacheprovider tests/test_structures.py \
  tests/test_patterns.py tests/test_numpy.py tests/test_ranks.py --library "$3"
