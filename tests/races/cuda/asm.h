// One instruction a macro, so that a line of a kernel is the line of its instruction. `S` is a shared-memory address.
#pragma once
#include <cstdint>

#define S(p) ((uint32_t)__cvta_generic_to_shared(p))
#define INIT(bar, count) asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(S(bar)), "r"(count) : "memory")
#define INVAL(bar) asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(S(bar)) : "memory")
#define FENCE_INIT() asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory")
#define FENCE_PROXY() asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
#define ARRIVE(bar) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(S(bar)) : "memory")
#define EXPECT(bar, bytes) \
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(S(bar)), "r"((uint32_t)(bytes)) : "memory")
#define WAIT(bar, parity)                                                                                       \
    asm volatile(                                                                                               \
        "{\n.reg .pred done;\nAGAIN: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra AGAIN;\n}" \
        ::"r"(S(bar)), "r"(parity) : "memory")
#define LOAD(to, from, bytes, bar)                                                                                \
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"( \
                     S(to)), "l"(from), "r"((uint32_t)(bytes)), "r"(S(bar)) : "memory")
#define STORE(to, from, bytes) \
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(S(from)), "r"((uint32_t)(bytes)) : "memory")
#define COMMIT() asm volatile("cp.async.bulk.commit_group;" ::: "memory")
#define WAIT_READ() asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory")
#define WAIT_DONE() asm volatile("cp.async.bulk.wait_group 0;" ::: "memory")
