# SPDX-License-Identifier: Apache-2.0
# 32-bit x86 programs by gcc -m32, for the unit tests of the core: sizes and pointers of 32 bits.
# They run as they are. Debian's gcc-multilib takes the place of every cross compiler, so ./dev asks
# for gcc-12-multilib, which does not and lacks one thing: a folder asm, for which the 64-bit one
# does. 32-bit libraries would need a second architecture in dpkg, so none is looked for;
# tests/m32/cmocka.h stands in for cmocka.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR i686)
set(CMAKE_C_COMPILER gcc)
set(CMAKE_C_FLAGS_INIT "-m32 -msse2 -mfpmath=sse -idirafter /usr/include/x86_64-linux-gnu")
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(TESSERA_CORE_TESTS_ONLY ON)
