/* Files that are part of the program, read where they lie in it: the model that `terse` uses without -m, its profile, for
 * what `terse run` takes without --kv, the text that codebooks are learned from without -f, and the page of `terse serve`. NAME_begin and NAME_end stand for the first byte and the one past the last. */
    .macro embed name:req, file:req
    .section .rodata.\name, "a", %progbits
    .balign 4096
    .globl \name\()_begin
    .hidden \name\()_begin
\name\()_begin:
    .incbin "\file"
    .globl \name\()_end
    .hidden \name\()_end
\name\()_end:
    .byte 0
    .endm

    embed default_model, TERSE_DEFAULT_MODEL
    embed default_profile, TERSE_DEFAULT_PROFILE
    embed calibration_text, TERSE_CALIBRATION_TEXT
    embed page, TERSE_PAGE
    .section .note.GNU-stack, "", %progbits
