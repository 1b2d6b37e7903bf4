# SPDX-License-Identifier: Apache-2.0
# run_in.sh FOLDER COMMAND...: runs a program of this machine on the drivers and libraries that
# newer_mesa.sh has unpacked. Skipped where there are none. OpenCL has no devices there but those
# that RUSTICL_ENABLE names; TESSERA_TEST_PRELOAD is a library that goes in front.
folder=$1
shift
[ -f "$folder/complete" ] || { echo "skipped: there is nothing in $folder"; exit 77; }
libraries=$(cat "$folder/libraries")
# Own libraries are found by the program; those of this machine come last.
here=$(dirname "$(ldd /bin/sh | sed -n 's,.* => \(/[^ ]*libc\.so[^ ]*\).*,\1,p')")
loader=$(find "$folder/root/" -name 'ld-linux-*.so.*' | head -n 1)
export VK_DRIVER_FILES="$folder/driver.json" VK_LAYER_PATH="$folder/layers"
export OCL_ICD_VENDORS=/nonexistent
[ -z "${RUSTICL_ENABLE:-}" ] || export OCL_ICD_VENDORS="$folder/opencl.icd"
exec "$loader" --library-path "$libraries:$here" --preload "${TESSERA_TEST_PRELOAD:-}" "$@"
