/*
 * entry_points.S - the exported dlsym, dlopen and dlmopen. See dlsym.c.
 *
 * The libc uses the return address of a call: for dlsym, RTLD_NEXT means "after the caller", and dlopen searches the
 * caller's RUNPATH and opens in the caller's namespace. A hook in plain C would put its own return address there
 * (always at -O0 and -O1), and the libc would take this library for the caller. Therefore each function here asks a
 * filter in C and then jumps to the libc's function.
 */
    .text
    .globl dlsym
    .type dlsym, %function
#if defined(__x86_64__)
    .p2align 4
dlsym:
    .cfi_startproc
    endbr64
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    subq $8, %rsp /* the stack is 8 bytes off at entry; now it is aligned for a call */
    .cfi_adjust_cfa_offset 8
    call sg_dlsym_filter
    addq $8, %rsp
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    testq %rax, %rax
    jz 1f
    incq %rax /* SG_DLSYM_ABSENT is -1 */
    jz 2f
    decq %rax
2:  ret
1:  movq sg_dlsym_next(%rip), %rax
    jmp *%rax
    .cfi_endproc
    .size dlsym, . - dlsym

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
    .p2align 2
dlsym:
    .cfi_startproc
    hint #25 /* paciasp, also a landing pad for branches: signs x30 if the processor can */
    .cfi_negate_ra_state
    stp x29, x30, [sp, #-32]!
    .cfi_adjust_cfa_offset 32
    .cfi_rel_offset x29, 0
    .cfi_rel_offset x30, 8
    stp x0, x1, [sp, #16]
    mov x29, sp
    bl sg_dlsym_filter
    mov x9, x0
    ldp x0, x1, [sp, #16]
    ldp x29, x30, [sp], #32
    .cfi_restore x29
    .cfi_restore x30
    .cfi_adjust_cfa_offset -32
    hint #29 /* autiasp */
    .cfi_negate_ra_state
    cbz x9, 1f
    cmn x9, #1 /* SG_DLSYM_ABSENT is -1 */
    csel x0, xzr, x9, eq
    ret
1:  adrp x16, sg_dlsym_next
    ldr x16, [x16, #:lo12:sg_dlsym_next]
    br x16
    .cfi_endproc
    .size dlsym, . - dlsym

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
