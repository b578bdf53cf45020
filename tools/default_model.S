/* The model that `terse` uses without -m, read where it lies in the program file. */
    .section .rodata.default_model, "a", %progbits
    .balign 4096
    .globl default_model_begin
    .hidden default_model_begin
default_model_begin:
    .incbin TERSE_DEFAULT_MODEL
    .globl default_model_end
    .hidden default_model_end
default_model_end:
    .byte 0
    .section .note.GNU-stack, "", %progbits
