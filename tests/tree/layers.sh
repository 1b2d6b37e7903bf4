# SPDX-License-Identifier: Apache-2.0
# Includes point one way: include <- core <- backends. The core names no vendor; a backend sees its
# own folder, backends/common and the installed headers; the command, the bench suite and the tests
# see include/ and support/ (unit tests apart, which may see core/ and backends/common as well).
. "$(dirname "$0")/common.sh"

vendors='cuda|hip|opencl|vulkan|nvidia|amd'
names=$(grep -rniwE "$vendors" core 2>/dev/null)
[ -z "$names" ] || wrong "core/ names a vendor:
$names"

# Quoted and angled includes of a folder: file:include, system headers left out by the patterns
# below.
includes() {
  grep -nE '^[[:space:]]*#[[:space:]]*include' "$@" /dev/null |
    sed -E 's/^([^:]*):[0-9]*:[[:space:]]*#[[:space:]]*include[[:space:]]*/\1 /'
}

# Whether header $1 exists in one of the folders after it.
exists_in() {
  header=$1
  shift
  for folder in "$@"; do [ ! -e "$folder/$header" ] || return 0; done
  return 1
}

# check FILES-PATTERN allowed folders...: a quoted include must resolve beside the file or in an
# allowed folder.
check() {
  pattern=$1
  shift
  for file in $(files "$pattern"); do
    includes "$file" | while read -r _ name; do
      case $name in
        \"*)
          header=${name#\"}
          header=${header%%\"*}
          exists_in "$header" "$(dirname "$file")" "$@" || echo "$file: includes \"$header\""
          case $header in *../*) echo "$file: includes \"$header\" through .." ;; esac ;;
        '<tessera/tessera.h>'* | '<tessera/tessera_backend.h>'*) ;;
        '<tessera/tessera_'[a-z]*'.h>'*)
          case $file in
            backends/* | tests/* | examples/*) ;;
            *) echo "$file: includes $name" ;;
          esac ;;
        '<tessera'*) echo "$file: includes $name" ;;
      esac
    done
  done
}

bad=$(
  check 'include/tessera/*' include/tessera
  check 'core/*' core
  for backend in backends/*/; do
    backend=${backend%/}
    [ "$backend" = backends/common ] ||
      check "$backend/*" "$backend" backends/common backends/common/kernels include
  done
  check 'backends/common/*' backends/common include
  check 'support/*' support
  check 'bench/*' support bench
  check 'cli/*' support bench cli
  for folder in tests/*/; do
    folder=${folder%/}
    case $folder in
      tests/unit | tests/cpu | tests/opencl | tests/vulkan | tests/drivers) ;;
      tests/driver_calls | tests/amd) ;;
      # Steps are compared with those of the kernel in C.
      tests/conformance) check "$folder/*" tests support bench backends/common ;;
      *) check "$folder/*" tests support bench ;;
    esac
  done
  check 'tests/unit/*' tests support core backends/common
  check 'tests/cpu/*' tests support backends/cpu backends/common
  # Its stand-in for the loader needs the declarations, and runs a kernel on the host.
  check 'tests/opencl/*' tests support tests/drivers backends/opencl backends/common \
    backends/common/kernels
  # Declarations of Vulkan are under test, and its stand-in inflates a kernel.
  check 'tests/vulkan/*' tests support backends/vulkan backends/common
  # What stands in for a driver reads the arguments of kernels.
  check 'tests/drivers/*' tests support backends/common backends/common/kernels backends/cuda
  check 'tests/driver_calls/*' tests support tests/drivers backends/common backends/cuda
  # It is a backend, whose kernels run in an emulator.
  check 'tests/amd/*' tests support backends/common
  check 'examples/*'
)
[ -z "$bad" ] || wrong "$bad"

# The core reaches backends through core/registry.h alone, which backends/registry.c implements; no
# other backend file may see core/.
# shellcheck disable=SC2046
bad=$(includes $(files 'core/*') | grep -E 'backends/')
[ -z "$bad" ] || wrong "core/ sees a backend:
$bad"
finish "the direction of includes"
