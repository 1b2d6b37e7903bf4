/* SPDX-License-Identifier: Apache-2.0 */
/* Files that the build puts into the program for the page, each ended by a 0 byte. The chart
 * library, which is compressed as gzip does, and its licence are empty where the build did not find
 * them. */
#ifndef TESSERA_BENCH_PAGE_ASSETS_H
#define TESSERA_BENCH_PAGE_ASSETS_H

extern const char page_style[], page_script[], page_charts_script[];
extern const char page_library[], page_library_end[], page_library_licence[];

#endif
