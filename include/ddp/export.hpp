// Marks what libddp.so shows to programs; everything else in the library is hidden.
#pragma once

// Of a class or function that programs may use.
#define DDP_EXPORT [[gnu::visibility("default")]]

// An inline namespace, so part of every name that the library shows: v, then the major and the minor version. Options
// are structs that travel by value and grow with a minor version; a program that was built with the headers of another
// one fails to link or to start, instead of reading fields that are not there.
#define DDP_ABI v0_1
