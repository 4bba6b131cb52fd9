// As moved_functions.S, those that the CUDA runtime's archive calls beside. shm_open() and shm_unlink()
// were in librt.so.1.
#include "rendezvous/glibc/moved.inc"

moved GLIBC_2.3.4 dlmopen
moved GLIBC_2.2.5 pthread_rwlock_init, pthread_rwlock_destroy, pthread_rwlock_unlock
moved GLIBC_2.2.5 pthread_rwlock_rdlock, pthread_rwlock_tryrdlock, pthread_rwlock_timedrdlock
moved GLIBC_2.2.5 pthread_rwlock_wrlock, pthread_rwlock_trywrlock, pthread_rwlock_timedwrlock
moved GLIBC_2.2.5 pthread_rwlockattr_init, pthread_rwlockattr_destroy, pthread_rwlockattr_setpshared
moved GLIBC_2.2.5 pthread_spin_init, pthread_spin_destroy, pthread_spin_lock, pthread_spin_trylock, pthread_spin_unlock
moved GLIBC_2.2.5 sem_init, sem_destroy, sem_post, sem_wait, sem_trywait, sem_timedwait, shm_open, shm_unlink

.section .note.GNU-stack, "", @progbits
