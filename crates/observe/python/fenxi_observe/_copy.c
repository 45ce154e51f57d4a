/* Copies shared words; what is read afterwards is not older. Python has no such fence of its own,
 * and machines other than x86-64 need one. Loaded by ctypes, so this is no module of Python. */
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

void fenxi_observe_copy(const _Atomic uint64_t *from, uint64_t *to, size_t words)
{
    for (size_t word = 0; word < words; word++)
        to[word] = atomic_load_explicit(&from[word], memory_order_relaxed);
    atomic_thread_fence(memory_order_acquire);
}

void fenxi_observe_stage(_Atomic uint64_t *to, const uint64_t *from, size_t words)
{
    atomic_thread_fence(memory_order_release);
    for (size_t word = 0; word < words; word++)
        atomic_store_explicit(&to[word], from[word], memory_order_relaxed);
}

void fenxi_observe_publish(_Atomic uint64_t *count, _Atomic uint64_t *to, const uint64_t *from,
                           size_t words, uint64_t next)
{
    atomic_thread_fence(memory_order_release);
    for (size_t word = 0; word < words; word++)
        atomic_store_explicit(&to[word], from[word], memory_order_relaxed);
    atomic_store_explicit(count, next, memory_order_release);
}
