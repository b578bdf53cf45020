/* Holds the conversation of `terse run -cnv`: turns, commands, and interrupts. */
#include "chat.h"

#include "message_reader.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct chat {
    struct run *run;
    struct terse_session *before; /* the last reply, which /regen writes again; NULL: there is none to write again */
    unsigned regenerated;         /* times */
    bool terminal, leaves, refused;
    unsigned interrupts; /* at the prompt, since the last message or command */
};

/* ---- Turns */

static void forget_reply(struct chat *chat) {
    terse_session_free(chat->before);
    chat->before = NULL;
    chat->regenerated = 0;
}

/* Returns the chat's exit status after that of a turn or command: at a terminal the chat goes on, unless SIGTERM came or stdout cannot be
 * written. */
static int status_after(struct chat *chat, int status) {
    if (!chat->terminal || !output_write("", 0)) return status;
    if (status != EXIT_INTERRUPTED) return EXIT_OK;
    return console_take_interrupt() ? EXIT_OK : status;
}

static int turn(struct chat *chat, const char *message) {
    struct run *run = chat->run;
    run->full = false;
    int status = run_read_turn(run, message);
    if (status != EXIT_OK) {
        int of_chat = status_after(chat, status);
        if (of_chat == EXIT_OK && status == EXIT_INTERRUPTED) remark("stopped; the message was not read");
        return of_chat;
    }
    if (run->full) {
        if (chat->terminal) remark("(/clear forgets the conversation, /save FILE keeps it)");
        return EXIT_OK;
    }
    forget_reply(chat);
    /* A fork shares the pages. Where the KV budget has no room for its recent window, there is no /regen. */
    terse_session_fork(run->session, &chat->before, NULL);
    return status_after(chat, run_generate(run));
}

/* ---- Commands */

static int help(struct chat *chat, const char *argument);

static int clear(struct chat *chat, const char *argument) {
    (void)argument;
    forget_reply(chat);
    terse_session_reset(chat->run->session);
    chat->run->replied = chat->run->full = false;
    remark("the conversation is forgotten%s",
           chat->run->text || chat->run->system ? "; -sys and -f go before the next message again" : "");
    return EXIT_OK;
}

static int save(struct chat *chat, const char *file) {
    struct terse_error error;
    if (terse_session_save(chat->run->session, file, &error) != TERSE_OK) return complain_error(&error);
    remark("saved %" PRIu64 " tokens to %s", terse_session_length(chat->run->session), file);
    return EXIT_OK;
}

static int load(struct chat *chat, const char *file) {
    struct run *run = chat->run;
    struct terse_session *session;
    struct terse_cache_report cache;
    struct terse_error error;
    char method[128];
    if (run_open_session(run, file, &session, &error) != TERSE_OK) return complain_error(&error);
    forget_reply(chat);
    run_replace_session(run, session);
    run->replied = terse_session_length(session) > 0;
    terse_session_cache(session, &cache);
    remark("restored from %s: a conversation of %" PRIu64 " tokens, KV cache %.2f MiB (%s)%s", file, cache.tokens,
           (double)cache.resident / 0x1p20, setup_method_text(&run->setup, method, sizeof method),
           run->sampling_given ? "" : ", and how it sampled");
    return EXIT_OK;
}

static int report_cache(struct chat *chat, const char *argument) {
    (void)argument;
    const struct setup *setup = &chat->run->setup;
    struct terse_cache_options f16 = terse_cache_options_defaults();
    struct terse_cache_report cache, as_f16;
    struct terse_error error;
    char text[384];
    terse_session_cache(chat->run->session, &cache);
    if (setup_cache_bytes(setup, &f16, cache.tokens, &as_f16, &error) != TERSE_OK) return complain_error(&error);
    remark("KV cache of %" PRIu64 " tokens: %s; f16 takes %.2f MiB", cache.tokens,
           run_cache_text(chat->run, &cache, text, sizeof text), (double)as_f16.resident / 0x1p20);
    remark("  of it pages %.2f MiB, exact tokens %.2f MiB, recent window %.2f MiB, tables %.2f MiB; %" PRIu64 " tokens are kept",
           (double)cache.codes / 0x1p20, (double)cache.exact / 0x1p20, (double)cache.window / 0x1p20, (double)cache.tables / 0x1p20,
           cache.kept);
    return EXIT_OK;
}

static int regenerate(struct chat *chat, const char *argument) {
    (void)argument;
    struct run *run = chat->run;
    struct terse_session *again;
    int32_t token;
    if (!chat->before)
        return complain(
            "/regen writes the last reply again, and there is none, or the KV budget had no room to keep what was before it");
    chat->regenerated++;
    enum terse_status forked = terse_session_fork(chat->before, &again, NULL);
    run_replace_session(run, forked == TERSE_OK ? again : chat->before);
    if (forked != TERSE_OK) chat->before = NULL;
    /* Random numbers begin where they began for the first reply, one further each time. */
    for (unsigned i = 0; i < chat->regenerated; i++) terse_session_sample(run->session, &token, NULL);
    return status_after(chat, run_generate(run));
}

static int leave(struct chat *chat, const char *argument) {
    (void)argument;
    chat->leaves = true;
    return EXIT_OK;
}

static const struct command {
    const char *name, *argument, *summary;
    int (*act)(struct chat *chat, const char *argument);
} commands[] = {
    {"/help", NULL, "these lines", help},
    {"/clear", NULL, "forget the conversation", clear},
    {"/save", "FILE", "keep it in a file", save},
    {"/load", "FILE", "go on with one that was kept", load},
    {"/kv", NULL, "what the KV cache takes", report_cache},
    {"/regen", NULL, "write the last reply again, otherwise", regenerate},
    {"/exit", NULL, "leave; /quit and Ctrl-D as well", leave},
    {"/quit", NULL, NULL, leave},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static int help(struct chat *chat, const char *argument) {
    (void)chat, (void)argument;
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (commands[i].summary)
            remark("%-6s %-4s  %s", commands[i].name, commands[i].argument ? commands[i].argument : "", commands[i].summary);
    remark("Ctrl-C stops a reply. A message goes on in the next line after a \\ at the end of one.");
    return EXIT_OK;
}

/* Returns whether a message is "/word", alone or before a blank: a message may begin with a path. */
static bool is_command(const char *message) {
    if (message[0] != '/' || strchr(message, '\n')) return false;
    size_t word = 1 + strspn(message + 1, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ");
    return word > 1 && (!message[word] || message[word] == ' ' || message[word] == '\t');
}

/* Removes blanks at both ends, in place. */
static char *trim(char *text) {
    text += strspn(text, " \t\r\n");
    for (size_t n = strlen(text); n && strchr(" \t\r\n", text[n - 1]);) text[--n] = 0;
    return text;
}

static int obey(struct chat *chat, char *command) {
    char *argument = command + strcspn(command, " \t");
    if (*argument) *argument++ = 0;
    argument = trim(argument);
    for (size_t i = 0; i < N_COMMANDS; i++) {
        const struct command *c = &commands[i];
        if (strcmp(command, c->name) != 0) continue;
        if (c->argument && !*argument) return complain("%s needs the name of a file", c->name);
        if (!c->argument && *argument) return complain("%s takes nothing behind it, and there is \"%s\"", c->name, argument);
        return c->act(chat, argument);
    }
    return complain("there is no command %s; /help lists them (a message that begins so takes a blank before it)", command);
}

/* ---- The conversation */

static int take(struct chat *chat, char *message) {
    chat->interrupts = 0;
    char *command = message[0] == '/' ? trim(message) : message;
    if (!is_command(command)) return message[strspn(message, " \t\n")] ? turn(chat, message) : EXIT_OK;
    int status = obey(chat, command);
    if (status != EXIT_FAILED) return status;
    chat->refused = true;
    return EXIT_OK;
}

/* Handles an interrupt at the prompt. The first one may have been meant for a reply that had just ended or been stopped, as when a
 * user presses Ctrl-C twice. */
static int interrupted(struct chat *chat) {
    if (!chat->terminal || !console_take_interrupt() || chat->interrupts++) return EXIT_INTERRUPTED;
    remark("(Ctrl-C again, or Ctrl-D, leaves)");
    return EXIT_OK;
}

static void greet(const struct chat *chat) {
    if (!chat->run->setup.model_path)
        remark("The built-in model is lab-27m: it continues prose and finds facts planted in a text, to try caches with. For a "
               "conversation give a model with -m FILE.");
    if (chat->terminal) remark("(/help lists commands; Ctrl-C stops a reply, Ctrl-D leaves)");
}

int chat(struct run *run, bool *refused) {
    struct chat chat = {.run = run};
    struct message_reader *reader = message_reader_new(run->color);
    char *message;
    int status = reader ? EXIT_OK : EXIT_FAILED;
    if (!reader) return status;
    chat.terminal = message_reader_terminal(reader);
    if (chat.terminal) console_expect_interrupts();
    greet(&chat);
    if (run->prompt) status = turn(&chat, run->prompt);
    while (status == EXIT_OK && !chat.leaves && (chat.terminal || !run->full)) {
        switch (message_reader_next(reader, &message)) {
        case MESSAGE_READ: status = take(&chat, message); break;
        case MESSAGE_REFUSED: chat.refused = true; break;
        case MESSAGE_INTERRUPTED: status = interrupted(&chat); break;
        case MESSAGE_FAILED: status = EXIT_FAILED; break;
        case MESSAGE_END: chat.leaves = true; break;
        }
    }
    *refused = chat.refused && !chat.terminal;
    terse_session_free(chat.before);
    message_reader_free(reader);
    return status;
}
