# SPDX-License-Identifier: Apache-2.0
add_library(tessera_warnings INTERFACE)
target_compile_options(tessera_warnings INTERFACE -Wall -Wextra -Wpedantic -Wshadow
  -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wno-psabi
  -Wno-missing-field-initializers # {sizeof d} is how the public header asks for zeroed descriptors
  $<$<BOOL:${TESSERA_WERROR}>:-Werror>)
