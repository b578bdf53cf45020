/* Asks each command for its table and writes one page of it (man, groff_man(7)), a case of bash's function and one of zsh's. */
#include "pages.h"

#include "console.h"
#include "options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct pages {
    const char *folder;
    const struct command *commands, *command; /* the one whose table is written */
    size_t n;
    FILE *bash, *zsh;
    int status;
};

/* Opens folder/NAME for writing; NULL after a complaint. */
static FILE *open_page(struct pages *p, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", p->folder, name);
    FILE *page = fopen(path, "w");
    if (!page) p->status = complain("cannot write %s: %s", path, strerror(errno));
    return page;
}

static void close_page(struct pages *p, FILE *page, const char *name) {
    bool failed = !page || ferror(page);
    if (page && fclose(page)) failed = true;
    if (failed && p->status == EXIT_OK) p->status = complain("cannot write %s/%s: %s", p->folder, name, strerror(errno));
}

/* ---- Options */

static bool takes_value(const struct option *option) { return option->kind != OPTION_FLAG; }

/* Returns whether one of the option's names is this one. */
static bool is_named(const struct option *option, const char *name) {
    const char *at = option->names;
    for (size_t length; options_next_name(&at, &length); at += length)
        if (strlen(name) == length && memcmp(at, name, length) == 0) return true;
    return false;
}

/* Writes the names with something between them. */
static void write_names(FILE *out, const struct option *option, const char *between) {
    const char *at = option->names, *before = "";
    for (size_t length; options_next_name(&at, &length); at += length, before = between)
        fprintf(out, "%s%.*s", before, (int)length, at);
}

/* Writes the words that the value may be, with blanks between them; returns whether there are any. Methods with a number of the user's
 * choice, such as streaming-N, are no words. */
static bool write_values(FILE *out, const struct option *option) {
    struct terse_method_info method;
    bool methods = is_named(option, "--kv");
    if (methods) fprintf(out, "auto");
    for (size_t i = 0; methods && terse_method_describe(i, &method); i++)
        if (!strpbrk(method.name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ")) fprintf(out, " %s", method.name);
    if (option->kind == OPTION_CHOICE)
        for (const char *c = option->value; *c; c++) fputc(*c == '|' ? ' ' : *c, out);
    return methods || option->kind == OPTION_CHOICE;
}

static bool has_values(const struct option *option) { return is_named(option, "--kv") || option->kind == OPTION_CHOICE; }

/* ---- man */

/* Writes text so that groff prints each character as it is. */
static void write_roff(FILE *out, const char *text) {
    bool line_begins = true;
    for (; *text; text++) {
        if (line_begins && (*text == '.' || *text == '\'')) fputs("\\&", out);
        if (*text == '-')
            fputs("\\-", out);
        else if (*text == '\\')
            fputs("\\e", out);
        else if (*text == '\'')
            fputs("\\(aq", out);
        else
            fputc(*text, out);
        line_begins = *text == '\n';
    }
}

static void begin_page(FILE *out, const char *title, const char *name, const char *summary) {
    fprintf(out, ".TH %s 1 \"\" \"terse %s\" \"terse\"\n.SH NAME\n", title, terse_version());
    write_roff(out, name);
    fputs(" \\- ", out);
    write_roff(out, summary);
    fputs("\n.SH SYNOPSIS\n", out);
}

static void write_tagged(FILE *out, const char *tag, const char *value) {
    fputs(".TP\n\\fB", out);
    write_roff(out, tag);
    fputs("\\fR", out);
    if (value) {
        fputs(" \\fI", out);
        write_roff(out, value);
        fputs("\\fR", out);
    }
    fputc('\n', out);
}

static void write_option(FILE *out, const struct option *option) {
    char names[256] = "", preset[64];
    const char *at = option->names;
    for (size_t length, used = 0; options_next_name(&at, &length) && used < sizeof names; at += length)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%.*s", used ? ", " : "", (int)length, at);
    write_tagged(out, names, option->value);
    if (!option->help) return;
    options_default(option, preset, sizeof preset);
    write_roff(out, option->help);
    write_roff(out, preset);
    fputc('\n', out);
}

/* Writes the options that --help shows, or the others. */
static void write_options(FILE *out, const struct option_set *set, bool shown) {
    const struct option *option;
    for (size_t i = 0; (option = options_row(set, i)); i++)
        if (!option->help == !shown) write_option(out, option);
}

static void write_manual(struct pages *p, const struct option_set *set) {
    char name[80], title[64];
    const struct option *option;
    bool others = false;
    snprintf(title, sizeof title, "terse-%s", p->command->name);
    snprintf(name, sizeof name, "%s.1", title);
    FILE *out = open_page(p, name);
    if (!out) return;
    begin_page(out, title, title, p->command->summary);
    write_roff(out, set->usage);
    fputs("\n.SH DESCRIPTION\n", out);
    write_roff(out, set->about);
    fputs(".SH OPTIONS\nThe value of a long option may be a part of it: \\fB\\-\\-name=value\\fR. Defaults stand in brackets.\n",
          out);
    write_options(out, set, true);
    for (size_t i = 0; (option = options_row(set, i)); i++) others = others || !option->help;
    if (others) fputs(".SH OTHER OPTIONS\nThese are named as in llama.cpp's programs, or turn off what is above.\n", out);
    write_options(out, set, false);
    fputs(".SH SEE ALSO\n.BR terse (1)\n", out);
    close_page(p, out, name);
}

static void write_overview(struct pages *p) {
    FILE *out = open_page(p, "terse.1");
    if (!out) return;
    begin_page(out, "terse", "terse", "long-context language models with a compressed KV cache");
    fputs(
        "\\fBterse\\fR \\fICOMMAND\\fR [options]\n.br\n\\fBterse \\-\\-ranks\\fR \\fIN\\fR \\fICOMMAND\\fR "
        "[options]\n.br\n\\fBterse "
        "\\-\\-version\\fR\n.SH DESCRIPTION\n"
        "Without \\fICOMMAND\\fR it is \\fBrun\\fR. Without \\fB\\-m\\fR every command uses the built\\-in model.\n.SH COMMANDS\n",
        out);
    for (size_t i = 0; i < p->n; i++) {
        write_tagged(out, p->commands[i].name, NULL);
        write_roff(out, p->commands[i].summary);
        fputc('\n', out);
    }
    fputs(".SH SEE ALSO\n", out);
    for (size_t i = 0; i < p->n; i++) fprintf(out, ".BR terse\\-%s (1)%s\n", p->commands[i].name, i + 1 < p->n ? "," : "");
    close_page(p, out, "terse.1");
}

/* ---- bash */

/* Writes the case of a command: the values of the option before the word, nothing where these are files or numbers, else options. */
static void write_bash(FILE *out, const char *command, const struct option_set *set) {
    const struct option *option;
    fprintf(out, "    %s)\n        case $previous in\n", command);
    for (size_t i = 0; (option = options_row(set, i)); i++) {
        if (!takes_value(option)) continue;
        fputs("        ", out);
        write_names(out, option, " | ");
        fputs(has_values(option) ? ") words='" : ") return ;;\n", out);
        if (write_values(out, option)) fputs("' ;;\n", out);
    }
    fputs("        *) [[ $current == -* ]] && words='--help", out);
    for (size_t i = 0; (option = options_row(set, i)); i++) {
        fputc(' ', out);
        write_names(out, option, " ");
    }
    fputs("' ;;\n        esac\n        ;;\n", out);
}

static void write_command_names(const struct pages *p, FILE *out, const char *between) {
    for (size_t i = 0; i < p->n; i++) fprintf(out, "%s%s", i ? between : "", p->commands[i].name);
}

/* Begins the function. Readline takes "--name=value" for three words. */
static void begin_bash(const struct pages *p, FILE *out) {
    fputs("# bash completion for terse, from its tables of options\n"
          "_terse() {\n"
          "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} command=run words=\n"
          "    COMPREPLY=()\n"
          "    if [[ $previous == = ]]; then previous=${COMP_WORDS[COMP_CWORD - 2]}; fi\n"
          "    if [[ $current == = ]]; then current=; fi\n"
          "    if [[ $COMP_CWORD -eq 1 && $current != -* ]]; then\n"
          "        COMPREPLY=($(compgen -W 'help version ",
          out);
    write_command_names(p, out, " ");
    fputs("' -- \"$current\"))\n"
          "        return\n"
          "    fi\n"
          "    case ${COMP_WORDS[1]} in\n    ",
          out);
    write_command_names(p, out, " | ");
    fputs(") command=${COMP_WORDS[1]} ;;\n"
          "    esac\n"
          "    case $command in\n",
          out);
}

static void end_bash(FILE *out) {
    fputs("    esac\n"
          "    COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
          "}\n"
          "complete -o bashdefault -o default -F _terse terse\n",
          out);
}

/* ---- zsh */

/* Writes text for a specification of _arguments between single quotes. */
static void write_zsh_text(FILE *out, const char *text) {
    for (; *text; text++) {
        if (*text == '\'')
            fputs("'\\''", out);
        else if (strchr("[]:\\", *text))
            fprintf(out, "\\%c", *text);
        else
            fputc(*text == '\n' ? ' ' : *text, out);
    }
}

/* Writes '[help]:value:action' of one option, which excludes its other names: '(-c --ctx-size)'-c'[tokens]:N:'. */
static void write_zsh_option(FILE *out, const struct option *option) {
    const char *at = option->names;
    for (size_t length; options_next_name(&at, &length); at += length) {
        fputs("            '", out);
        if (option->kind == OPTION_TEXTS) {
            fputc('*', out);
        } else {
            fputc('(', out);
            write_names(out, option, " ");
            fputc(')', out);
        }
        fprintf(out, "%.*s", (int)length, at);
        if (option->help) {
            fputc('[', out);
            write_zsh_text(out, option->help);
            fputc(']', out);
        }
        if (takes_value(option)) {
            fputc(':', out);
            write_zsh_text(out, option->value);
            fputc(':', out);
            if (has_values(option)) {
                fputc('(', out);
                write_values(out, option);
                fputc(')', out);
            } else if (strcmp(option->value, "FILE") == 0) {
                fputs("_files", out);
            }
        }
        fputs("' \\\n", out);
    }
}

static void write_zsh(FILE *out, const char *command, const struct option_set *set) {
    const struct option *option;
    fprintf(out, "    %s)\n        _arguments \\\n            '--help[the options]' \\\n", command);
    for (size_t i = 0; (option = options_row(set, i)); i++) write_zsh_option(out, option);
    fputs("            '*:file:_files'\n        ;;\n", out);
}

static void begin_zsh(const struct pages *p, FILE *out) {
    fputs("#compdef terse\n# zsh completion for terse, from its tables of options\n_terse() {\n    local command=run\n    local -a "
          "commands\n"
          "    commands=(\n",
          out);
    for (size_t i = 0; i < p->n; i++) {
        fprintf(out, "        '%s:", p->commands[i].name);
        write_zsh_text(out, p->commands[i].summary);
        fputs("'\n", out);
    }
    fputs("    )\n"
          "    if ((CURRENT == 2)) && [[ $words[2] != -* ]]; then\n"
          "        _describe command commands\n"
          "        _path_files -g '*.gguf'\n"
          "        return\n"
          "    fi\n"
          "    case $words[2] in\n    (",
          out);
    write_command_names(p, out, "|");
    fputs(")\n        command=$words[2]\n        shift words\n        ((CURRENT--))\n        ;;\n    esac\n    case $command in\n",
          out);
}

static void end_zsh(FILE *out) { fputs("    esac\n}\n_terse \"$@\"\n", out); }

/* ---- All of them */

static void write_set(void *user, const struct option_set *set) {
    struct pages *p = user;
    write_manual(p, set);
    write_bash(p->bash, p->command->name, set);
    write_zsh(p->zsh, p->command->name, set);
}

int pages_write(const char *folder, const struct command *commands, size_t n) {
    struct pages p = {.folder = folder, .commands = commands, .n = n};
    p.bash = open_page(&p, "terse.bash");
    p.zsh = p.bash ? open_page(&p, "_terse") : NULL;
    if (p.zsh) {
        write_overview(&p);
        begin_bash(&p, p.bash);
        begin_zsh(&p, p.zsh);
        options_describe(write_set, &p);
        for (p.command = commands; p.command < commands + n; p.command++) p.command->main(0, NULL);
        end_bash(p.bash);
        end_zsh(p.zsh);
        close_page(&p, p.zsh, "_terse");
    }
    if (p.bash) close_page(&p, p.bash, "terse.bash");
    return p.status;
}
