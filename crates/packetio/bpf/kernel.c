// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
//
// As first.c, and the kernel labels flows.

#define LABELS
#include "first.c"
