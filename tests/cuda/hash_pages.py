# Prints a hash of all pages and of all rows that are read back: python3 hash.py tests/cuda/test_encode_transform.c (uncommitted, for comparing builds).
import sys
p=sys.argv[1]; s=open(p).read()
s=s.replace("struct difference {","static void print_hash(const char *what, const void *bytes, size_t n) {\n    uint64_t h = 14695981039346656037u;\n    for (size_t i = 0; i < n; i++) h = (h ^ ((const uint8_t *)bytes)[i]) * 1099511628211u;\n    printf(\"%s %016llx\\n\", what, (unsigned long long)h);\n}\n\nstruct difference {",1)
s=s.replace("    memcpy(s->chunk, chunk, s->chunk_bytes); /* for check_rows */","    print_hash(\"pages\", chunk, s->chunk_bytes);\n    memcpy(s->chunk, chunk, s->chunk_bytes); /* for check_rows */",1)
s=s.replace("    uint16_t *rows = sample_decode(s);\n","    uint16_t *rows = sample_decode(s);\n    print_hash(\"rows\", rows, s->row_bytes);\n",1)
open(p,'w').write(s)
