package io.sealstone.function;

import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;

/** The description of a call. */
public final class Call {
    /** Maximum number of arguments. */
    public static final int ARGUMENTS_MAX = 256;

    private final String method;
    private final byte[] argumentBytes;
    private final OsdObject[] objects;
    private final int timeoutMs;
    private final long resultBytesMax;
    private Map<String, String> arguments;

    Call(String method, byte[] argumentBytes, OsdObject[] objects, int timeoutMs, long resultBytesMax) {
        this.method = method;
        this.argumentBytes = argumentBytes;
        this.objects = objects;
        this.timeoutMs = timeoutMs;
        this.resultBytesMax = resultBytesMax;
    }

    /**
     * Returns the method that the user named.
     *
     * @return the name, which may be empty
     */
    public String method() {
        return method;
    }

    /**
     * Returns the arguments as the user sent them.
     *
     * @return a copy of the bytes
     */
    public byte[] argumentBytes() {
        return argumentBytes.clone();
    }

    /**
     * Returns the value of an argument.
     *
     * @param name its name
     * @return the value, or null
     */
    public String argument(String name) {
        return arguments().get(name);
    }

    /**
     * Returns the arguments.
     *
     * @return names and values, in the order of the user
     * @throws IllegalArgumentException if they are not {@code name=value} strings
     */
    public Map<String, String> arguments() {
        if (arguments == null) {
            arguments = parse(argumentBytes);
        }
        return new LinkedHashMap<>(arguments);
    }

    /**
     * Returns the objects of the call.
     *
     * @return a copy of the array
     */
    public OsdObject[] objects() {
        return objects.clone();
    }

    /**
     * Returns the wall time of the call.
     *
     * @return milliseconds
     */
    public int timeoutMs() {
        return timeoutMs;
    }

    /**
     * Returns the maximum size of the result.
     *
     * @return bytes
     */
    public long resultBytesMax() {
        return resultBytesMax;
    }

    private static Map<String, String> parse(byte[] encoded) {
        Map<String, String> arguments = new LinkedHashMap<>();
        int start = 0;
        for (int end = 0; end < encoded.length; end++) {
            if (encoded[end] != 0) {
                continue;
            }
            String argument = new String(encoded, start, end - start, StandardCharsets.UTF_8);
            int equals = argument.indexOf('=');
            if (equals <= 0
                    || arguments.size() >= ARGUMENTS_MAX
                    || arguments.putIfAbsent(argument.substring(0, equals), argument.substring(equals + 1)) != null) {
                throw new IllegalArgumentException(
                        "argument " + arguments.size() + " is not a new name=value string");
            }
            start = end + 1;
        }
        if (start != encoded.length) {
            throw new IllegalArgumentException("the last argument has no zero byte at its end");
        }
        return arguments;
    }
}
