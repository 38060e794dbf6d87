/*
 * entry_points.S - the exported dlsym, dlvsym, dlopen and dlmopen. See dlsym.c.
 *
 * The libc uses the return address of a call: for dlsym, RTLD_NEXT means "after the caller", and dlopen searches the
 * caller's RUNPATH and opens in the caller's namespace. A hook in plain C would put its own return address there
 * (always at -O0 and -O1), and the libc would take this library for the caller. Therefore each function here asks a
 * filter in C and then jumps to the libc's function.
 */
    .text
#if defined(__x86_64__)
/* The filter gets the return address as well. It returns an answer, and the function to jump to if there is none. */
.macro LOOK_UP name, filter
    .globl \name
    .type \name, %function
    .p2align 4
\name:
    .cfi_startproc
    endbr64
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    pushq %rdx
    .cfi_adjust_cfa_offset 8
    movq 24(%rsp), %rcx
    call \filter
    movq %rdx, %r11
    popq %rdx
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    testq %r11, %r11
    jnz 1f
    ret
1:  jmp *%r11
    .cfi_endproc
    .size \name, . - \name
.endm
    LOOK_UP dlsym, sg_dlsym_filter
    LOOK_UP dlvsym, sg_dlsym_filter_version

/* The filter returns the function to jump to, and the mode to pass to it. */
.macro OPEN name, filter, mode
    .globl \name
    .type \name, %function
    .p2align 4
\name:
    .cfi_startproc
    endbr64
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    pushq %rdx
    .cfi_adjust_cfa_offset 8
    call \filter
    movl %edx, %ecx
    popq %rdx
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    movl %ecx, \mode
    jmp *%rax
    .cfi_endproc
    .size \name, . - \name
.endm
    OPEN dlopen, sg_dlsym_filter_dlopen, %esi
    OPEN dlmopen, sg_dlsym_filter_dlmopen, %edx
#elif defined(__aarch64__)
/* The filter gets the return address as well. It returns an answer, and the function to jump to if there is none. */
.macro LOOK_UP name, filter
    .globl \name
    .type \name, %function
    .p2align 2
\name:
    .cfi_startproc
    hint #25 /* paciasp, also a landing pad for branches: signs x30 if the processor can */
    .cfi_negate_ra_state
    stp x29, x30, [sp, #-48]!
    .cfi_adjust_cfa_offset 48
    .cfi_rel_offset x29, 0
    .cfi_rel_offset x30, 8
    stp x0, x1, [sp, #16]
    str x2, [sp, #32]
    mov x29, sp
    hint #7 /* xpaclri: the address without its signature */
    mov x3, x30
    bl \filter
    mov x9, x0
    mov x16, x1
    ldp x0, x1, [sp, #16]
    ldr x2, [sp, #32]
    ldp x29, x30, [sp], #48
    .cfi_restore x29
    .cfi_restore x30
    .cfi_adjust_cfa_offset -48
    hint #29 /* autiasp */
    .cfi_negate_ra_state
    cbnz x16, 1f
    mov x0, x9
    ret
1:  br x16
    .cfi_endproc
    .size \name, . - \name
.endm
    LOOK_UP dlsym, sg_dlsym_filter
    LOOK_UP dlvsym, sg_dlsym_filter_version

/* The filter returns the function to jump to, and the mode to pass to it. */
.macro OPEN name, filter, mode
    .globl \name
    .type \name, %function
    .p2align 2
\name:
    .cfi_startproc
    hint #25
    .cfi_negate_ra_state
    stp x29, x30, [sp, #-48]!
    .cfi_adjust_cfa_offset 48
    .cfi_rel_offset x29, 0
    .cfi_rel_offset x30, 8
    stp x0, x1, [sp, #16]
    str x2, [sp, #32]
    mov x29, sp
    bl \filter
    mov x16, x0
    mov w9, w1
    ldp x0, x1, [sp, #16]
    ldr x2, [sp, #32]
    ldp x29, x30, [sp], #48
    .cfi_restore x29
    .cfi_restore x30
    .cfi_adjust_cfa_offset -48
    hint #29
    .cfi_negate_ra_state
    mov \mode, w9
    br x16
    .cfi_endproc
    .size \name, . - \name
.endm
    OPEN dlopen, sg_dlsym_filter_dlopen, w1
    OPEN dlmopen, sg_dlsym_filter_dlmopen, w2
#else
#error "entry_points.S is written for x86-64 and aarch64"
#endif

/* If one object lacks this note, the linker marks the library as unprotected, and the kernel then protects none of it:
 * branch targets and return addresses on aarch64, branch targets and shadow stacks on x86-64. */
#if defined(__aarch64__)
#define PROTECTION 0xc0000000 /* GNU_PROPERTY_AARCH64_FEATURE_1_AND: BTI, PAC */
#else
#define PROTECTION 0xc0000002 /* GNU_PROPERTY_X86_FEATURE_1_AND: IBT, SHSTK */
#endif
    .section .note.gnu.property, "a"
    .p2align 3
    .long 4, 16, 5 /* bytes of the name, bytes of the descriptor, NT_GNU_PROPERTY_TYPE_0 */
    .asciz "GNU"
    .long PROTECTION, 4, 3, 0 /* type of the property, its bytes, both features, padding */
    .section .note.GNU-stack, "", %progbits
