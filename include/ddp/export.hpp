// Marks what libddp.so shows to programs; everything else in the library is hidden.
#pragma once

#define DDP_EXPORT __attribute__((visibility("default")))
