/* Preloaded into a process: its processor has no AVX, FMA or later. Programs that choose their code by CPUID (onnxruntime,
   numpy) then compute with SSE, several times slower, and evenly so: unlike a quota or a busy neighbour, which stop and go.
   The kernel lets a process trap its own CPUID instructions (arch_prctl ARCH_SET_CPUID) where the processor can. */
#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define ARCH_SET_CPUID 0x1012
#define BIT(number) (1u << (number))

static void trapped(int number, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const uint8_t *instruction = (const uint8_t *)registers[REG_RIP];
    uint32_t leaf = registers[REG_RAX], part = registers[REG_RCX], a, b, c, d;
    if (instruction[0] != 0x0f || instruction[1] != 0xa2) { /* a real fault: it happens again, and ends the process */
        signal(SIGSEGV, SIG_DFL);
        return;
    }
    syscall(SYS_arch_prctl, ARCH_SET_CPUID, 1UL);
    __cpuid_count(leaf, part, a, b, c, d);
    syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0UL);
    if (leaf == 1)
        c &= ~(BIT(12) | BIT(28) | BIT(29)); /* FMA, AVX, F16C */
    if (leaf == 7 && part == 0) { /* AVX2, AVX-512, AMX */
        b &= ~(BIT(5) | BIT(16) | BIT(17) | BIT(21) | BIT(28) | BIT(30) | BIT(31));
        c &= ~(BIT(1) | BIT(6) | BIT(9) | BIT(10) | BIT(11) | BIT(12) | BIT(14));
        d &= ~(BIT(2) | BIT(3) | BIT(8) | BIT(22) | BIT(23) | BIT(24) | BIT(25));
    }
    if (leaf == 7 && part > 0)
        a = b = c = d = 0;
    registers[REG_RAX] = a, registers[REG_RBX] = b, registers[REG_RCX] = c, registers[REG_RDX] = d;
    registers[REG_RIP] += 2;
}

__attribute__((constructor)) static void begin(void) {
    struct sigaction action = {.sa_sigaction = trapped, .sa_flags = SA_SIGINFO | SA_NODEFER};
    if (sigaction(SIGSEGV, &action, 0) || syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0UL))
        _exit(70);
}
