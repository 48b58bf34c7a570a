package redlatch.interop;

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.stream.Collectors;

/**
 * The arguments of one command, and the encoding of words on a line.
 *
 * <p>Words are percent-encoded UTF-8, so that any name fits between two spaces. A lone {@code %} is the empty word, a
 * lone {@code -} in a reply is null or nothing.
 */
final class Tokens {
    static final String NIL = "-";
    private static final String EMPTY = "%";

    private final String[] words;
    private int next;

    Tokens(String[] words) {
        this.words = words;
    }

    boolean hasNext() {
        return next < words.length;
    }

    String text() {
        if (!hasNext()) {
            throw new IllegalArgumentException("argument " + (next + 1) + " is missing");
        }
        return decode(words[next++]);
    }

    long number() {
        return Long.parseLong(text());
    }

    long numberOr(long otherwise) {
        return hasNext() ? number() : otherwise;
    }

    int count() {
        return Integer.parseInt(text());
    }

    int countOr(int otherwise) {
        return hasNext() ? count() : otherwise;
    }

    /** Refuses words that no verb has asked for, so that a misspelled call never looks like a success. */
    void end() {
        if (hasNext()) {
            throw new IllegalArgumentException("unexpected argument " + (next + 1) + ": " + words[next]);
        }
    }

    static String encodeValue(Object value) {
        if (value == null) {
            return NIL;
        }
        if (value instanceof Collection<?> items) {
            return items.isEmpty() ? EMPTY
                    : items.stream().map(item -> encode(String.valueOf(item))).collect(Collectors.joining(","));
        }
        return encode(String.valueOf(value));
    }

    static String encode(String word) {
        if (word.isEmpty()) {
            return EMPTY;
        }
        if (word.equals(NIL)) {
            return "%2D";
        }
        StringBuilder line = new StringBuilder();
        for (byte octet : word.getBytes(StandardCharsets.UTF_8)) {
            boolean plain = octet >= 'a' && octet <= 'z' || octet >= 'A' && octet <= 'Z'
                    || octet >= '0' && octet <= '9' || octet == '-' || octet == '.' || octet == '_';
            if (plain) {
                line.append((char) octet);
            } else {
                line.append(String.format("%%%02X", octet & 0xff));
            }
        }
        return line.toString();
    }

    static String decode(String line) {
        if (line.equals(EMPTY)) {
            return "";
        }
        ByteArrayOutputStream octets = new ByteArrayOutputStream();
        byte[] raw = line.getBytes(StandardCharsets.UTF_8);
        for (int i = 0; i < raw.length; i++) {
            if (raw[i] != '%') {
                octets.write(raw[i]);
            } else if (i + 2 < raw.length) {
                octets.write(Integer.parseInt(new String(raw, i + 1, 2, StandardCharsets.US_ASCII), 16));
                i += 2;
            } else {
                throw new IllegalArgumentException("cut off percent sign in " + line);
            }
        }
        try {
            return StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(octets.toByteArray())).toString();
        } catch (CharacterCodingException e) {
            throw new IllegalArgumentException("a Java string cannot hold these bytes: " + line, e);
        }
    }
}
