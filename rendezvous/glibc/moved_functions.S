// Functions that glibc moved into libc.so.6 in 2.32 to 2.34, or gave another form in 2.29 or 2.33, under a new version
// each.
// What is linked on such a glibc asks for the new versions, and older systems refuse to load it. The old ones are still
// there, so each of these passes a call on to the old one; objects in the C++ library's archive, which no version can
// be written into, find them too, as what a program itself has goes before any library. Hidden, so that no other
// library in the process sees them. A name that is missing here fails tests/deploy/packages.sh, which says so.
#include "rendezvous/glibc/moved.inc"

moved GLIBC_2.2.5 log, pow
moved GLIBC_2.2.5 dladdr, dlclose, dlerror, dlopen, dlsym, dlvsym
moved GLIBC_2.2.5 pthread_create, pthread_detach, pthread_join, pthread_kill, pthread_once, pthread_sigmask
moved GLIBC_2.2.5 __pthread_key_create, pthread_key_create, pthread_key_delete, pthread_getspecific, pthread_setspecific
moved GLIBC_2.2.5 pthread_condattr_setpshared, pthread_mutex_trylock
moved GLIBC_2.2.5 pthread_mutexattr_init, pthread_mutexattr_destroy
moved GLIBC_2.2.5 pthread_mutexattr_setpshared, pthread_mutexattr_settype
moved GLIBC_2.3.3 pthread_condattr_setclock
moved GLIBC_2.12 pthread_getname_np, pthread_setname_np

with_layout stat, __xstat
with_layout lstat, __lxstat
with_layout fstat, __fxstat
with_layout stat64, __xstat
with_layout lstat64, __lxstat
with_layout fstat64, __fxstat

.section .note.GNU-stack, "", @progbits
