/*
 * dlsym.S - the exported dlsym. See hook_dl.c.
 *
 * Plain C would put its own return address between the caller and the libc's dlsym (at -O0 and -O1 always), and the libc
 * would take us for the caller: RTLD_NEXT would then mean "after sparkguard", which sends others into endless loops.
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
    subq $8, %rsp /* the stack was 8 off at entry: now it is aligned for a call */
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
#elif defined(__aarch64__)
    .p2align 2
dlsym:
    .cfi_startproc
    hint #25 /* paciasp, also a place to branch to: signs x30, where the processor can */
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
#else
#error "dlsym.S is written for x86-64 and aarch64"
#endif
    .size dlsym, . - dlsym
#if defined(__aarch64__)
    /* Branch targets and return addresses are protected here, too: without this note in every object the linker marks the
     * library as unprotected, and so does the kernel all of its code. */
    .section .note.gnu.property, "a"
    .p2align 3
    .word 4, 16, 5 /* bytes of the name, bytes of what follows it, NT_GNU_PROPERTY_TYPE_0 */
    .asciz "GNU"
    .word 0xc0000000, 4, 3, 0 /* GNU_PROPERTY_AARCH64_FEATURE_1_AND, its bytes: BTI, PAC; padding */
#endif
    .section .note.GNU-stack, "", %progbits
